#include "kernels/float8.h"

#include "kernels/element_types.h"
#include "kernels/float_mode.h"

namespace tccl::kernels {
namespace {

template <typename Format>
[[gnu::noinline]] void decode_as(float* to, const unsigned char* from, std::size_t count) {
  for (std::size_t begin = 0; begin < count; begin += kLanes<float>) {
    Ints codes{};
    const std::size_t few = count - begin < kLanes<float> ? count - begin : kLanes<float>;
    for (std::size_t i = 0; i < few; ++i) codes[i] = from[begin + i];
    const Floats values = float_of(Format::decode_bits(codes));
    for (std::size_t i = 0; i < few; ++i) to[begin + i] = values[i];
  }
}

template <typename Format>
[[gnu::noinline]] void encode_as(unsigned char* to, const float* from, std::size_t count) {
  for (std::size_t begin = 0; begin < count; begin += kLanes<float>) {
    Floats values{};
    const std::size_t few = count - begin < kLanes<float> ? count - begin : kLanes<float>;
    for (std::size_t i = 0; i < few; ++i) values[i] = from[begin + i];
    const Ints codes = Format::encode_bits(bits_of(values));
    for (std::size_t i = 0; i < few; ++i) to[begin + i] = static_cast<unsigned char>(codes[i]);
  }
}

}  // namespace

void float8_to_float32(float* to, const void* from, std::size_t count, DType dtype) {
  const DefaultFloatMode float_mode;
  const auto* codes = static_cast<const unsigned char*>(from);
  switch (dtype) {
    case DType::float8_e4m3fn:
      return decode_as<Float8E4m3fn>(to, codes, count);
    case DType::float8_e5m2:
      return decode_as<Float8E5m2>(to, codes, count);
    case DType::float8_e4m3fnuz:
      return decode_as<Float8E4m3fnuz>(to, codes, count);
    default:
      return decode_as<Float8E5m2fnuz>(to, codes, count);
  }
}

void float32_to_float8(void* to, const float* from, std::size_t count, DType dtype) {
  const DefaultFloatMode float_mode;
  auto* codes = static_cast<unsigned char*>(to);
  switch (dtype) {
    case DType::float8_e4m3fn:
      return encode_as<Float8E4m3fn>(codes, from, count);
    case DType::float8_e5m2:
      return encode_as<Float8E5m2>(codes, from, count);
    case DType::float8_e4m3fnuz:
      return encode_as<Float8E4m3fnuz>(codes, from, count);
    default:
      return encode_as<Float8E5m2fnuz>(codes, from, count);
  }
}

}  // namespace tccl::kernels
