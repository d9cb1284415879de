// Compressed formats x counts x kinds of values, every variant of the kernels against plain loops
// written from the description in compress.h, which share no code with the kernels.
#include "kernels/compress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/variants.h"
#include "unit/unusual_float_mode.h"

namespace tccl {
namespace {

using Bytes = std::vector<unsigned char>;
using Values = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSmallestNormal = std::numeric_limits<float>::min();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
constexpr std::size_t kCounts[] = {0, 1, 7, 64, 127, 128, 129, 1000, 100003};

struct Format {
  const char* name;
  WireFormat wire;
};

constexpr Format kFormats[] = {
    {"uncompressed", WireFormat::uncompressed},
    {"bfloat16", WireFormat::bfloat16},
    {"int8", WireFormat::int8},
};

// ---- The formats, by definition ----

template <typename T>
void append(Bytes& bytes, T value) {
  const std::size_t end = bytes.size();
  bytes.resize(end + sizeof(value));
  std::memcpy(&bytes[end], &value, sizeof(value));
}

double value_of_bfloat16(unsigned code) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16);
}

/// The nearer of the two codes around a number, on a tie the even one.
std::uint16_t expected_bfloat16(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const unsigned towards_zero = std::bit_cast<std::uint32_t>(value) >> 16;
  if (std::isinf(value)) return static_cast<std::uint16_t>(towards_zero);
  const unsigned away = towards_zero + 1;
  // Infinity stands for the number that would follow the largest one.
  const double outer = std::isinf(value_of_bfloat16(away))
                           ? std::copysign(std::ldexp(1.0, 128), value)
                           : value_of_bfloat16(away);
  const double below = std::fabs(value - value_of_bfloat16(towards_zero));
  const double above = std::fabs(outer - value);
  const bool up = above < below || (above == below && away % 2 == 0);
  return static_cast<std::uint16_t>(up ? away : towards_zero);
}

float truncated_to_17_bits(float value) {
  int exponent = 0;
  const float fraction = std::frexp(value, &exponent);
  return std::ldexp(std::floor(std::ldexp(fraction, 17)), exponent - 17);
}

float expected_scale(const float* block, std::size_t count) {
  float largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!std::isfinite(block[i])) return kNan;
    largest = std::max(largest, std::fabs(block[i]));
  }
  if (largest <= kSmallestNormal / 2) return 0;
  return std::max(truncated_to_17_bits(largest / 127), kSmallestNormal);
}

void append_expected_block(Bytes& compressed, const float* block, std::size_t count) {
  const float scale = expected_scale(block, count);
  append(compressed, scale);
  for (std::size_t i = 0; i < count; ++i)
    append(compressed, static_cast<std::int8_t>(scale > 0 ? std::nearbyint(block[i] / scale) : 0));
}

Bytes expected_compressed(const Values& values, WireFormat format) {
  Bytes compressed;
  if (format == WireFormat::uncompressed)
    for (const float value : values) append(compressed, value);
  if (format == WireFormat::bfloat16)
    for (const float value : values) append(compressed, expected_bfloat16(value));
  if (format == WireFormat::int8)
    for (std::size_t begin = 0; begin < values.size(); begin += 128)
      append_expected_block(compressed, &values[begin],
                            std::min<std::size_t>(128, values.size() - begin));
  return compressed;
}

template <typename T>
T read(const Bytes& bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, &bytes[offset], sizeof(value));
  return value;
}

float expected_element(const Bytes& compressed, std::size_t i, WireFormat format) {
  if (format == WireFormat::uncompressed) return read<float>(compressed, 4 * i);
  if (format == WireFormat::bfloat16)
    return static_cast<float>(value_of_bfloat16(read<std::uint16_t>(compressed, 2 * i)));
  const std::size_t block = i / 128 * 132;
  return read<std::int8_t>(compressed, block + 4 + i % 128) * read<float>(compressed, block);
}

Bytes expected_decompressed(const Bytes& compressed, std::size_t count, WireFormat format) {
  Bytes values;
  for (std::size_t i = 0; i < count; ++i) append(values, expected_element(compressed, i, format));
  return values;
}

// ---- Values ----

using Random = std::mt19937;

Values normal_values(std::size_t count, float magnitude) {
  Random random(static_cast<unsigned>(count));
  std::normal_distribution<double> normal;
  Values values(count);
  for (float& value : values) value = static_cast<float>(normal(random) * magnitude);
  return values;
}

/// Any bits: numbers of all magnitudes, infinities, NaN.
Values any_bits(std::size_t count) {
  Random random(3);
  Values values(count);
  for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  return values;
}

/// Zeros, except for one of `rare` in two of three blocks.
Values zeros_with(std::size_t count, const Values& rare) {
  Values values(count);
  for (std::size_t i = 0; i < count; i += 128)
    if (i / 128 % 3 != 2)
      values[std::min(i + i / 128 % 128, count - 1)] = rare[i / 128 % rare.size()];
  return values;
}

Values repeated(std::size_t count, const Values& pattern) {
  Values values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = pattern[i % pattern.size()];
  return values;
}

struct Kind {
  const char* name;
  Values (*make)(std::size_t count);
};

constexpr Kind kKinds[] = {
    {"zeros",
     [](std::size_t n) {
       return repeated(n, {0.0f, -0.0f});
     }},
    {"ones", [](std::size_t n) { return normal_values(n, 1); }},
    {"small", [](std::size_t n) { return normal_values(n, 1e-6f); }},
    {"large", [](std::size_t n) { return normal_values(n, 1e30f); }},
    {"barely_normal", [](std::size_t n) { return normal_values(n, 1e-36f); }},
    {"around_the_smallest", [](std::size_t n) { return normal_values(n, kSmallestNormal); }},
    {"denormal", [](std::size_t n) { return normal_values(n, 1000 * kDenormal); }},
    {"smallest_denormals",
     [](std::size_t n) {
       return repeated(n, {kDenormal, 0, -kDenormal});
     }},
    {"largest",
     [](std::size_t n) {
       return repeated(n, {kLargest, 1, -kLargest, kLargest / 3});
     }},
    {"whole",
     [](std::size_t n) {
       return repeated(n, {127, 0.5f, -1.5f, 2.5f, 126.5f, -127});
     }},
    {"rare_specials",
     [](std::size_t n) {
       return zeros_with(n, {kNan, kInfinity, -kInfinity, kDenormal, -kLargest, -kNan, 1});
     }},
    {"any_bits", any_bits},
};

// ---- Kernels ----

/// At an odd address, between margins that must not change.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : bytes_(bytes + 2 * kMargin + 1, kMark) {}
  explicit Buffer(const void* from, std::size_t bytes) : Buffer(bytes) {
    if (bytes != 0) std::memcpy(data(), from, bytes);
  }
  unsigned char* data() { return bytes_.data() + kMargin + 1; }
  std::size_t size() const { return bytes_.size() - 2 * kMargin - 1; }
  Bytes contents() { return {data(), data() + size()}; }
  bool margins_intact() const {
    const auto intact = [](unsigned char byte) { return byte == kMark; };
    return std::all_of(bytes_.begin(), bytes_.begin() + kMargin + 1, intact) &&
           std::all_of(bytes_.end() - kMargin, bytes_.end(), intact);
  }

 private:
  static constexpr std::ptrdiff_t kMargin = 64;
  static constexpr unsigned char kMark = 0xee;
  Bytes bytes_;
};

const kernels::CompressionKernel& compression_kernel_for(const kernels::Variant& variant,
                                                         WireFormat format) {
  return format == WireFormat::int8 ? variant.compression_kernels->int8
                                    : variant.compression_kernels->bfloat16;
}

Bytes compressed_by(const kernels::Variant& variant, const Values& values, WireFormat format) {
  Buffer from(values.data(), 4 * values.size()),
      to(kernels::compressed_bytes(format, values.size()));
  compression_kernel_for(variant, format).compress(to.data(), from.data(), values.size());
  EXPECT_TRUE(to.margins_intact());
  return to.contents();
}

Bytes decompressed_by(const kernels::Variant& variant, const Bytes& compressed, std::size_t count,
                      WireFormat format) {
  Buffer from(compressed.data(), compressed.size()), to(4 * count);
  compression_kernel_for(variant, format).decompress(to.data(), from.data(), count);
  EXPECT_TRUE(to.margins_intact());
  return to.contents();
}

Bytes compress(const Values& values, WireFormat format) {
  Bytes compressed(kernels::compressed_bytes(format, values.size()));
  kernels::compress(compressed.data(), values.data(), values.size(), format);
  return compressed;
}

Values decompress(const Bytes& compressed, std::size_t count, WireFormat format) {
  Values values(count);
  kernels::decompress(values.data(), compressed.data(), count, format);
  return values;
}

Bytes bytes_of(const Values& values) {
  Bytes bytes;
  for (const float value : values) append(bytes, value);
  return bytes;
}

/// Every count and kind of values of one format.
class Compression : public testing::TestWithParam<Format> {
 protected:
  template <typename Body>
  static void for_each(const Body& body) {
    for (const std::size_t count : kCounts)
      for (const Kind& kind : kKinds) {
        SCOPED_TRACE(std::string(kind.name) + ", " + std::to_string(count) + " elements");
        body(kind.make(count));
        if (HasFailure()) return;
      }
  }

  static WireFormat format() { return GetParam().wire; }
};

TEST_P(Compression, MatchesTheDescription) {
  for_each([](const Values& values) {
    const Bytes compressed = expected_compressed(values, format());
    const Values decompressed = decompress(compressed, values.size(), format());
    EXPECT_EQ(compress(values, format()), compressed);
    EXPECT_EQ(bytes_of(decompressed), expected_decompressed(compressed, values.size(), format()));
  });
}

TEST_P(Compression, HasTheSameBytesInEveryVariant) {
  if (format() == WireFormat::uncompressed) return;  // a copy
  for_each([](const Values& values) {
    const Bytes compressed = expected_compressed(values, format());
    const Bytes decompressed = expected_decompressed(compressed, values.size(), format());
    for (const kernels::Variant& variant : kernels::variants()) {
      if (!variant.usable()) continue;
      EXPECT_EQ(compressed_by(variant, values, format()), compressed) << variant.name;
      EXPECT_EQ(decompressed_by(variant, compressed, values.size(), format()), decompressed)
          << variant.name;
    }
  });
}

TEST_P(Compression, OfDecompressedDataGivesTheSameBytes) {
  for_each([](const Values& values) {
    const Bytes compressed = compress(values, format());
    EXPECT_EQ(compress(decompress(compressed, values.size(), format()), format()), compressed);
  });
}

TEST_P(Compression, CanBeSplitBetweenBlocks) {
  constexpr std::size_t kCount = 1000;
  const Values values = normal_values(kCount, 1),
               whole = decompress(compress(values, format()), kCount, format());
  const Bytes compressed = compress(values, format());
  for (std::size_t begin = 0; begin < kCount; begin += kernels::kCompressionBlock) {
    Values part(kCount - begin);
    kernels::decompress(part.data(), &compressed[kernels::compressed_bytes(format(), begin)],
                        part.size(), format());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<long>(begin)))
        << begin;
  }
}

TEST_P(Compression, DoesNotDependOnTheCallersRounding) {
  const Values values = normal_values(1000, kSmallestNormal);
  const Bytes compressed = compress(values, format());
  const Values decompressed = decompress(compressed, values.size(), format());
  const UnusualFloatMode mode;
  EXPECT_EQ(compress(values, format()), compressed);
  EXPECT_EQ(bytes_of(decompress(compressed, values.size(), format())), bytes_of(decompressed));
}

INSTANTIATE_TEST_SUITE_P(All, Compression, testing::ValuesIn(kFormats),
                         [](const auto& tested) { return std::string(tested.param.name); });

// ---- Errors of a round trip ----

constexpr float kMagnitudes[] = {1e-37f, 1e-30f, 1e-6f, 1, 127, 3e4f, 1e30f};

TEST(PackedBytes, OfEachFormat) {
  EXPECT_EQ(kernels::compressed_bytes(WireFormat::uncompressed, 129), 516u);
  EXPECT_EQ(kernels::compressed_bytes(WireFormat::bfloat16, 129), 258u);
  EXPECT_EQ(kernels::compressed_bytes(WireFormat::int8, 0), 0u);
  EXPECT_EQ(kernels::compressed_bytes(WireFormat::int8, 1), 5u);
  EXPECT_EQ(kernels::compressed_bytes(WireFormat::int8, 128), 132u);
  EXPECT_EQ(kernels::compressed_bytes(WireFormat::int8, 129), 137u);
}

TEST(PackedBFloat16, ErrorsAreWithinTheBound) {
  for (const float magnitude : kMagnitudes) {
    const Values values = normal_values(100003, magnitude);
    const Values result =
        decompress(compress(values, WireFormat::bfloat16), values.size(), WireFormat::bfloat16);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double bound = std::max(std::fabs(values[i]) / 256.0, std::ldexp(1.0, -134));
      ASSERT_LE(std::fabs(static_cast<double>(result[i]) - values[i]), bound) << values[i];
    }
  }
}

TEST(PackedBFloat16, KeepsInfinityAndNan) {
  const Values values = {kInfinity, -kInfinity, kNan, -kNan, std::bit_cast<float>(0x7f800001u),
                         -0.0f};
  const Values result =
      decompress(compress(values, WireFormat::bfloat16), values.size(), WireFormat::bfloat16);
  EXPECT_EQ(result[0], kInfinity);
  EXPECT_EQ(result[1], -kInfinity);
  for (const std::size_t i : {2, 3, 4}) EXPECT_TRUE(std::isnan(result[i])) << i;
  EXPECT_TRUE(result[5] == 0 && std::signbit(result[5]));
}

/// The largest difference that compress.h allows in a block.
double int8_bound(const float* block, std::size_t count) {
  double largest = 0;
  for (std::size_t i = 0; i < count; ++i)
    largest = std::max(largest, std::fabs(static_cast<double>(block[i])));
  return std::max(largest / 254 * (1 + std::ldexp(1.0, -16)), std::ldexp(1.0, -127));
}

void expect_int8_within_bound(const Values& values) {
  const Values result =
      decompress(compress(values, WireFormat::int8), values.size(), WireFormat::int8);
  double bound = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % 128 == 0) bound = int8_bound(&values[i], std::min<std::size_t>(128, values.size() - i));
    ASSERT_LE(std::fabs(static_cast<double>(result[i]) - values[i]), bound) << values[i];
  }
}

TEST(PackedInt8, ErrorsAreWithinTheBound) {
  for (const float magnitude : kMagnitudes)
    expect_int8_within_bound(normal_values(100003, magnitude));
}

TEST(PackedInt8, ErrorsAreWithinTheBoundAtTheEndsOfTheRange) {
  // A block each: the numbers next to the ends and to where the scale stops falling.
  Values largest;
  for (const float start :
       {kLargest, 127 * kSmallestNormal, kSmallestNormal, kSmallestNormal / 2, 1.0f}) {
    float down = start, up = start;
    for (int i = 0; i < 500;
         ++i, down = std::nextafter(down, 0.0f), up = std::nextafter(up, kLargest)) {
      largest.push_back(down);
      largest.push_back(-up);
    }
  }
  Random random(5);
  std::uniform_real_distribution<float> fraction(-1, 1);
  Values values;
  for (const float end : largest)
    for (int i = 0; i < 128; ++i) values.push_back(i == 0 ? end : end * fraction(random));
  expect_int8_within_bound(values);
}

TEST(PackedInt8, ANonFiniteElementMakesOnlyItsBlockNan) {
  for (const float special : {kNan, -kNan, kInfinity, -kInfinity})
    for (const std::size_t at : {128, 200, 255}) {
      Values values(3 * 128, 1.0f);
      values[at] = special;
      const Values result =
          decompress(compress(values, WireFormat::int8), values.size(), WireFormat::int8);
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (i / 128 == 1) {
          ASSERT_TRUE(std::isnan(result[i])) << i;
        } else {
          ASSERT_NEAR(result[i], 1.0f, 1e-5f) << i;
        }
      }
    }
}

TEST(PackedInt8, ZerosHaveScaleZero) {
  EXPECT_EQ(compress(Values(128, -0.0f), WireFormat::int8), Bytes(132, 0));
}

}  // namespace
}  // namespace tccl
