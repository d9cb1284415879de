// The kernels' results on fixed inputs have the digests in kernel_digests.txt, with every variant
// and on every architecture: x86-64 and aarch64 compute the same bits. Rows: element type,
// reduction, digest.
//
// UPDATE_DIGESTS=1 writes the file instead of comparing it.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/compress.h"
#include "kernels/float8.h"
#include "kernels/variants.h"
#include "unit/reduce_reference.h"

namespace tccl {
namespace {

// ---- Digests ----

/// FNV-1a of 64 bits.
class Digest {
 public:
  void add(const void* data, std::size_t bytes) {
    const auto* byte = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < bytes; ++i) value_ = (value_ ^ byte[i]) * 0x100000001b3;
  }
  [[nodiscard]] std::string row(const std::string& name) const {
    char digits[17];
    std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(value_));
    return name + " " + digits + "\n";
  }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

/// Any NaN of float32, float64 and complex becomes one: which NaN an operation returns depends on
/// the architecture and on the order of operands that the compiler chooses. Narrower types have one
/// NaN anyway and are left as they are.
void make_nans_equal(DType dtype, Bytes& elements) {
  const DType component = component_of(dtype);
  if (component != DType::float32 && component != DType::float64) return;
  for (std::size_t i = 0; i < elements.size(); i += size_of(component))
    if (is_nan_element(component, &elements[i]))
      std::fill_n(elements.begin() + static_cast<long>(i), size_of(component), 0xff);
}

// ---- Inputs: of random bits alone; std's distributions differ between standard libraries ----

/// Any bits, denormals, special numbers, and mostly numbers around one.
template <typename Bits, int kMantissaBits>
Bits random_float(Random& random) {
  constexpr int kExponentBits = 8 * sizeof(Bits) - 1 - kMantissaBits;
  constexpr Bits kBias = (Bits{1} << (kExponentBits - 1)) - 1;
  constexpr Bits kInfinity = (2 * kBias + 1) << kMantissaBits;
  const auto any = static_cast<Bits>(random());
  const auto choice = random() % 64;
  const Bits sign = any & ~(~Bits{0} >> 1), mantissa = any & ((Bits{1} << kMantissaBits) - 1);
  if (choice < 2) return any;
  if (choice < 6) return sign | mantissa;  // a denormal
  if (choice == 6) return sign;            // zero
  if (choice == 7) return sign | kInfinity;
  if (choice == 8) return sign | (kInfinity - 1);  // the largest
  return sign | (kBias - 4 + static_cast<Bits>(random() % 8)) << kMantissaBits | mantissa;
}

template <typename Bits, int kMantissaBits>
void fill_with_floats(Bytes& bytes, Random& random) {
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(Bits))
    write(&bytes[i], random_float<Bits, kMantissaBits>(random));
}

Bytes input(DType dtype, std::size_t count, Random& random) {
  Bytes bytes(count * size_of(dtype));
  switch (component_of(dtype)) {
    case DType::float64:
      fill_with_floats<std::uint64_t, 52>(bytes, random);
      break;
    case DType::float32:
      fill_with_floats<std::uint32_t, 23>(bytes, random);
      break;
    case DType::float16:
      fill_with_floats<std::uint16_t, 10>(bytes, random);
      break;
    case DType::bfloat16:
      fill_with_floats<std::uint16_t, 7>(bytes, random);
      break;
    default:  // integers, booleans and 8-bit floats: any bits
      for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  }
  return bytes;
}

// ---- Rows ----

std::string reduction_row(const kernels::Variant& variant, Case c) {
  Random random(1);
  Digest digest;
  for (const std::size_t source_count : {1, 2, 3, 9, 17})
    for (const std::size_t count : {1, 7, 65, 4099}) {
      std::vector<Bytes> sources;
      for (std::size_t s = 0; s < source_count; ++s)
        sources.push_back(input(c.dtype, count, random));
      const std::vector<const void*> inputs = pointers(sources);
      Bytes result(count * size_of(c.dtype));
      variant.reduce({result.data(), nullptr, inputs.data(), source_count, count, kFactors.data(),
                      source_count, c.dtype, c.op});
      make_nans_equal(c.dtype, result);
      digest.add(result.data(), result.size());
    }
  return digest.row(std::string(name_of(c.dtype)) + " " + std::string(name_of(c.op)));
}

std::string compression_rows(const kernels::CompressionKernel& kernel, WireFormat format,
                             const std::string& name) {
  Random random(1);
  Digest compressed_digest, decompressed_digest;
  for (const std::size_t count : {1, 7, 128, 300, 20001}) {
    Bytes values = input(DType::float32, count, random);
    // Blocks without infinity and NaN, too: they are the ones with codes.
    for (std::size_t i = 0; i < count; ++i)
      if (i / kernels::kCompressionBlock % 8 != 0 &&
          !(std::fabs(read<float>(&values[4 * i])) < 1e30f))
        write(&values[4 * i], -1.0f);
    Bytes compressed(kernels::compressed_bytes(format, count));
    kernel.compress(compressed.data(), values.data(), count);
    compressed_digest.add(compressed.data(), compressed.size());
    kernel.decompress(values.data(), compressed.data(), count);
    decompressed_digest.add(values.data(), values.size());
  }
  return compressed_digest.row("compressed " + name) +
         decompressed_digest.row("decompressed " + name);
}

std::string float8_rows() {
  std::string rows;
  Random random(1);
  for (const Format& f : kFormats) {
    if (!kernels::is_float8(f.dtype)) continue;
    constexpr std::size_t kCount = 20001;
    Bytes codes = input(f.dtype, kCount, random), values(4 * kCount);
    kernels::float8_to_float32(reinterpret_cast<float*>(values.data()), codes.data(), kCount,
                               f.dtype);
    Digest decoded, encoded;
    decoded.add(values.data(), values.size());
    values = input(DType::float32, kCount, random);
    kernels::float32_to_float8(codes.data(), reinterpret_cast<const float*>(values.data()), kCount,
                               f.dtype);
    encoded.add(codes.data(), codes.size());
    rows += decoded.row("decoded " + std::string(name_of(f.dtype)));
    rows += encoded.row("encoded " + std::string(name_of(f.dtype)));
  }
  return rows;
}

std::string all_rows(const kernels::Variant& variant) {
  std::string rows;
  for (const Case c : supported_cases()) rows += reduction_row(variant, c);
  const kernels::CompressionKernels& compression = *variant.compression_kernels;
  rows += compression_rows(compression.bfloat16, WireFormat::bfloat16, "bfloat16");
  rows += compression_rows(compression.int8, WireFormat::int8, "int8");
  return rows + float8_rows();
}

TEST(KernelDigests, AreTheSameOnEveryArchitecture) {
  const std::string path = TCCL_SOURCE_DIR "/tests/unit/kernel_digests.txt";
  if (::getenv("UPDATE_DIGESTS") != nullptr)
    std::ofstream(path) << all_rows(kernels::variants().front());
  std::stringstream found;
  found << std::ifstream(path).rdbuf();
  for (const kernels::Variant& variant : kernels::variants()) {
    if (!variant.usable()) continue;
    EXPECT_EQ(found.str(), all_rows(variant)) << variant.name;
  }
}

}  // namespace
}  // namespace tccl
