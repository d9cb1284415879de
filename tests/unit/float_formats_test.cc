// Conversions between float32 and the 16- and 8-bit floats against the definition of the formats.
#include "kernels/float_formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/float8.h"
#include "unit/float_format_definition.h"
#include "unit/unusual_float_mode.h"

namespace tccl {
namespace {

struct Converter {
  const Format& format;
  unsigned (*encode)(float);
  float (*decode)(unsigned);
};

template <typename F>
Converter converter(DType dtype) {
  return {*format_of(dtype), [](float value) -> unsigned { return F::encode(value); },
          [](unsigned code) { return F::decode(static_cast<typename F::Code>(code)); }};
}

std::vector<Converter> converters() {
  return {converter<kernels::Float16>(DType::float16),
          converter<kernels::BFloat16>(DType::bfloat16),
          converter<kernels::Float8E4m3fn>(DType::float8_e4m3fn),
          converter<kernels::Float8E5m2>(DType::float8_e5m2),
          converter<kernels::Float8E4m3fnuz>(DType::float8_e4m3fnuz),
          converter<kernels::Float8E5m2fnuz>(DType::float8_e5m2fnuz)};
}

class Conversions : public testing::TestWithParam<Converter> {
 protected:
  const Converter& c_ = GetParam();
  const Format& f_ = c_.format;

  /// Both signs of a magnitude.
  void expect_code(float magnitude, unsigned code) {
    EXPECT_EQ(c_.encode(magnitude), code) << magnitude;
    const bool signless = f_.specials == Specials::fnuz && (code == 0 || code == f_.sign_code());
    EXPECT_EQ(c_.encode(-magnitude), signless ? code : code | f_.sign_code()) << -magnitude;
  }
};

TEST_P(Conversions, DecodeEveryCode) {
  for (unsigned code = 0; code < f_.code_count(); ++code) {
    const double value = decode(f_, code);
    const float decoded = c_.decode(code);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(decoded)) << code;
    } else {
      ASSERT_EQ(decoded, value) << code;
      ASSERT_EQ(std::signbit(decoded), std::signbit(value)) << code;
    }
  }
}

TEST_P(Conversions, EveryCodeRoundTrips) {
  for (unsigned code = 0; code < f_.code_count(); ++code) {
    const unsigned again = c_.encode(c_.decode(code));
    if (std::isnan(decode(f_, code))) {
      ASSERT_TRUE(std::isnan(decode(f_, again))) << code;
    } else {
      ASSERT_EQ(again, code);
    }
  }
}

TEST_P(Conversions, MidpointsRoundToEven) {
  for (unsigned code = 0; code < largest_finite(f_); ++code) {
    const auto middle = static_cast<float>((decode(f_, code) + decode(f_, code + 1)) / 2);
    ASSERT_EQ(middle, (decode(f_, code) + decode(f_, code + 1)) / 2) << "not exact";
    expect_code(middle, code + code % 2);
    expect_code(std::nextafter(middle, 0.0f), code);
    expect_code(std::nextafter(middle, INFINITY), code + 1);
    if (HasFailure()) return;
  }
}

TEST_P(Conversions, OverflowStartsHalfAStepAboveTheLargest) {
  const unsigned last = largest_finite(f_);
  const double step = decode(f_, last) - decode(f_, last - 1);
  const auto boundary = static_cast<float>(decode(f_, last) + step / 2);
  expect_code(std::nextafter(boundary, 0.0f), last);
  expect_code(boundary, last % 2 == 0 ? last : overflowed(f_));
  expect_code(std::nextafter(boundary, INFINITY), overflowed(f_));
  expect_code(std::numeric_limits<float>::max(), overflowed(f_));
  expect_code(INFINITY, overflowed(f_));
}

TEST_P(Conversions, MatchTheDefinitionAcrossAllFloats) {
  constexpr std::uint32_t kStride = 10007;  // prime, so that all low bits are met
  for (std::uint64_t bits = 0; bits <= UINT32_MAX; bits += kStride) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(c_.encode(value), encode(f_, value)) << value;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Conversions, testing::ValuesIn(converters()), [](const auto& tested) {
  return std::string(name_of(tested.param.format.dtype));
});

TEST(Conversion, NanHasOneCodePerFormat) {
  const auto nan = std::bit_cast<float>(0x7f800001u);  // signalling, the smallest payload
  EXPECT_EQ(kernels::Float16::encode(nan), 0x7e00);
  EXPECT_EQ(kernels::Float16::encode(-nan), 0x7e00);
  EXPECT_EQ(kernels::BFloat16::encode(nan), 0x7fc0);
  EXPECT_EQ(kernels::BFloat16::encode(-nan), 0x7fc0);
  EXPECT_EQ(kernels::Float8E4m3fn::encode(nan), 0x7f);
  EXPECT_EQ(kernels::Float8E4m3fn::encode(-nan), 0x7f);
  EXPECT_EQ(kernels::Float8E5m2::encode(nan), 0x7f);
  EXPECT_EQ(kernels::Float8E5m2::encode(-nan), 0x7f);
  EXPECT_EQ(kernels::Float8E4m3fnuz::encode(-nan), 0x80);
  EXPECT_EQ(kernels::Float8E5m2fnuz::encode(-nan), 0x80);
}

TEST(Float8, CallersRoundingHasNoEffect) {
  for (const Format& f : kFormats) {
    if (!kernels::is_float8(f.dtype)) continue;
    std::vector<unsigned char> codes(f.code_count()), again(codes.size());
    for (unsigned code = 0; code < codes.size(); ++code)
      codes[code] = static_cast<unsigned char>(code);
    std::vector<float> values(codes.size());
    kernels::float8_to_float32(values.data(), codes.data(), codes.size(), f.dtype);
    for (float& value : values) value *= 0.875f;  // denormals are rounded again
    kernels::float32_to_float8(codes.data(), values.data(), codes.size(), f.dtype);
    const UnusualFloatMode mode;
    kernels::float32_to_float8(again.data(), values.data(), codes.size(), f.dtype);
    EXPECT_EQ(again, codes) << name_of(f.dtype);
    EXPECT_TRUE(UnusualFloatMode::is_set()) << "the caller's setting must be restored";
  }
}

}  // namespace
}  // namespace tccl
