// Names and sizes of element types, and which reductions they support.
#include "tccl/types.h"

#include <gtest/gtest.h>

namespace tccl {
namespace {

TEST(Types, HaveTheNamesAndSizesOfTorch) {
  EXPECT_EQ(name_of(DType::float8_e4m3fn), "float8_e4m3fn");
  EXPECT_EQ(name_of(DType::boolean), "bool");
  EXPECT_EQ(name_of(DType::complex128), "complex128");
  EXPECT_EQ(size_of(DType::bfloat16), 2u);
  EXPECT_EQ(size_of(DType::complex128), kMaxElementBytes);
  EXPECT_EQ(name_of(ReduceOp::premul_sum), "premul_sum");
}

TEST(Types, SupportedReductions) {
  EXPECT_TRUE(supports(DType::boolean, ReduceOp::sum));
  EXPECT_FALSE(supports(DType::boolean, ReduceOp::premul_sum));
  EXPECT_FALSE(supports(DType::int32, ReduceOp::avg));
  EXPECT_TRUE(supports(DType::complex64, ReduceOp::avg));
  EXPECT_FALSE(supports(DType::complex64, ReduceOp::max));
  EXPECT_FALSE(supports(DType::float32, ReduceOp::bxor));
  EXPECT_TRUE(supports(DType::uint64, ReduceOp::band));
}

}  // namespace
}  // namespace tccl
