// The reduction kernels against the reference: every element type x operation x number of sources x
// odd counts, on every variant of this CPU; then single rules of the arithmetic.
#include "kernels/reduce.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/variants.h"
#include "unit/reduce_reference.h"
#include "unit/unusual_float_mode.h"

namespace tccl {
namespace {

// ---- The kernels ----

class ReduceKernels : public testing::TestWithParam<Case> {
 protected:
  /// `body` gets random sources and the expected result for every number of sources and count,
  /// once for every variant that this CPU can run.
  template <typename Body>
  void for_each_input(Body body) {
    Random random(20240229);
    for (const std::size_t source_count : {1, 2, 3, 5, 8, 9, 17}) {  // batches of 8
      for (const std::size_t count : {0, 1, 7, 31, 65, 130, 511, 2049}) {
        SCOPED_TRACE(testing::Message() << source_count << " sources, " << count << " elements");
        std::vector<Bytes> sources;
        for (std::size_t s = 0; s < source_count; ++s) {
          sources.push_back(random_source(GetParam().dtype, count, random));
        }
        const Bytes result = expected(GetParam(), sources, count, kFactors);
        for (const kernels::Variant& variant : kernels::variants()) {
          if (!variant.usable()) continue;
          SCOPED_TRACE(variant.name);
          variant_ = &variant;
          std::vector<Bytes> copy = sources;
          body(copy, count, result);
          if (HasFatalFailure()) return;
        }
      }
    }
  }

  static void run(void* destination, const std::vector<const void*>& sources, std::size_t count,
                  void* second_destination = nullptr) {
    variant_->reduce({destination, second_destination, sources.data(), sources.size(), count,
                      kFactors.data(), sources.size(), GetParam().dtype, GetParam().op});
  }

 private:
  static inline const kernels::Variant* variant_ = nullptr;
};

TEST_P(ReduceKernels, MatchTheReference) {
  for_each_input([](std::vector<Bytes>& sources, std::size_t count, const Bytes& expected) {
    const std::vector<Bytes> before = sources;
    Bytes destination(expected.size() + 1, 0xa5);
    run(destination.data(), pointers(sources), count);
    ASSERT_TRUE(same(GetParam().dtype, destination.data(), expected));
    ASSERT_EQ(destination.back(), 0xa5) << "wrote beyond the end";
    ASSERT_EQ(sources, before);
  });
}

TEST_P(ReduceKernels, DestinationMayBeAnySource) {
  for_each_input([](std::vector<Bytes>& sources, std::size_t count, const Bytes& expected) {
    for (std::size_t s = 0; s < sources.size(); ++s) {
      std::vector<Bytes> copies = sources;
      run(copies[s].data(), pointers(copies), count);
      ASSERT_TRUE(same(GetParam().dtype, copies[s].data(), expected)) << "in place of " << s;
    }
  });
}

TEST_P(ReduceKernels, WriteASecondDestination) {
  for_each_input([](std::vector<Bytes>& sources, std::size_t count, const Bytes& expected) {
    const std::vector<const void*> inputs = pointers(sources);
    Bytes first(expected.size() + 1, 0xa5), second(expected.size() + 1, 0xa5);
    run(first.data(), inputs, count, second.data());
    ASSERT_TRUE(same(GetParam().dtype, second.data(), expected));
    ASSERT_EQ(second, first) << "also beyond the end";
    run(first.data(), inputs, count, sources.back().data());
    ASSERT_TRUE(same(GetParam().dtype, first.data(), expected));
    ASSERT_TRUE(same(GetParam().dtype, sources.back().data(), expected)) << "in place";
  });
}

TEST_P(ReduceKernels, WorkOnMisalignedBuffers) {
  for_each_input([](std::vector<Bytes>& sources, std::size_t count, const Bytes& expected) {
    std::vector<const void*> misaligned;
    for (std::size_t s = 0; s < sources.size(); ++s) {
      const std::size_t shift = 1 + 2 * (s % 4);
      sources[s].insert(sources[s].begin(), shift, 0xa5);
      misaligned.push_back(sources[s].data() + shift);
    }
    Bytes destination(expected.size() + 3, 0xa5);
    run(destination.data() + 3, misaligned, count);
    ASSERT_TRUE(same(GetParam().dtype, destination.data() + 3, expected));
  });
}

INSTANTIATE_TEST_SUITE_P(All, ReduceKernels, testing::ValuesIn(supported_cases()), case_name);

template <typename T>
T reduce_pair(T a, T b, DType dtype, ReduceOp op, std::vector<double> factors = {}) {
  const std::vector<const void*> sources = {&a, &b};
  T result;
  kernels::reduce(&result, sources, 1, dtype, op, factors);
  return result;
}

TEST(ReduceArithmetic, MinAndMaxKeepTheEarlierOfEquals) {
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    EXPECT_FALSE(std::signbit(reduce_pair(0.0f, -0.0f, DType::float32, op)));
    EXPECT_TRUE(std::signbit(reduce_pair(-0.0f, 0.0f, DType::float32, op)));
  }
}

TEST(ReduceArithmetic, MinAndMaxPropagateNanFromEitherSide) {
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    EXPECT_TRUE(std::isnan(reduce_pair(kNan, 1.0, DType::float64, op)));
    EXPECT_TRUE(std::isnan(reduce_pair(1.0, kNan, DType::float64, op)));
  }
}

TEST(ReduceArithmetic, NarrowFloatsAreRoundedOnce) {
  // In float16, 2048 + 1 is 2048 again; summed in float32 the ones survive.
  const std::vector<std::uint16_t> values = {0x6800, 0x3c00, 0x3c00};
  const std::vector<const void*> sources = {&values[0], &values[1], &values[2]};
  std::uint16_t result = 0;
  kernels::reduce(&result, sources, 1, DType::float16, ReduceOp::sum, {});
  EXPECT_EQ(result, 0x6801);  // 2050
}

/// `x` + `x`, `y` + `y` ... computed while the calling thread has another floating-point mode.
template <typename T, std::size_t kCount>
std::array<T, kCount> doubled_in_unusual_mode(const std::array<T, kCount>& values, DType dtype) {
  const void* sources[] = {values.data(), values.data()};
  std::array<T, kCount> result{};
  const UnusualFloatMode mode;
  kernels::reduce(result.data(), sources, kCount, dtype, ReduceOp::sum, {});
  EXPECT_TRUE(UnusualFloatMode::is_set()) << "the caller's setting must be restored";
  return result;
}

TEST(ReduceArithmetic, CallersDenormalFlushingHasNoEffect) {
  const float smallest = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(doubled_in_unusual_mode(std::array{smallest}, DType::float32)[0], 2 * smallest);
  const std::array<std::uint16_t, 3> float16 = {0x0001, 0x7c00, 0x7bff};  // infinity, the largest
  const std::array<std::uint16_t, 3> expected = {0x0002, 0x7c00, 0x7c00};
  EXPECT_EQ(doubled_in_unusual_mode(float16, DType::float16), expected);
}

TEST(ReduceArithmetic, CallersRoundingHasNoEffect) {
  const float tiny = std::ldexp(1.0f, -24) * 1.5f;  // 1 + tiny rounds up
  const float one = 1.0f;
  const void* sources[] = {&one, &tiny};
  float result = 0;
  {
    const UnusualFloatMode mode;
    kernels::reduce(&result, sources, 1, DType::float32, ReduceOp::sum, {});
  }
  EXPECT_EQ(result, std::nextafter(1.0f, 2.0f));
}

TEST(ReduceArithmetic, AverageDividesBySourceCount) {
  const float x = 3.0f;
  ASSERT_NE(7 * x * (1.0f / 7), x)
      << "with this number, multiplying by the inverse would give another result";
  const std::vector<const void*> sources(7, &x);
  float result = 0;
  kernels::reduce(&result, sources, 1, DType::float32, ReduceOp::avg, {});
  EXPECT_EQ(result, x);
}

TEST(ReduceArithmetic, IntegerFactorsAreTruncatedAndWrap) {
  const auto scaled = [](std::uint8_t x, double factor) {
    return reduce_pair<std::uint8_t>(x, 0, DType::uint8, ReduceOp::premul_sum, {factor, 1.0});
  };
  EXPECT_EQ(scaled(3, 2.9), 6);
  EXPECT_EQ(scaled(3, -1.0), 253);
  EXPECT_EQ(scaled(3, 257.0), 3);
  EXPECT_EQ(scaled(3, kNan), 0);
  EXPECT_EQ(scaled(3, kInfinity), 0);
  EXPECT_EQ(scaled(3, -1e300), 0);
}

TEST(ReduceArithmetic, UnsignedFactorsMayExceedTheSignedRange) {
  const double factor = 9223372036854775808.0;
  EXPECT_EQ(reduce_pair<std::uint64_t>(1, 0, DType::uint64, ReduceOp::premul_sum, {factor, 1.0}),
            1ull << 63);
}

TEST(ReduceArithmetic, ComplexProductIsThePlainFormula) {
  struct C {
    float re, im;
  };
  // The standard library's product would be recovered to infinity here.
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const C c = reduce_pair<C>({kInf, kInf}, {1, 1}, DType::complex64, ReduceOp::product);
  EXPECT_TRUE(std::isnan(c.re));
  EXPECT_EQ(c.im, kInf);
}

}  // namespace
}  // namespace tccl
