#include <cstring>

#include "kernels/compress.h"
#include "kernels/copy.h"
#include "kernels/float_mode.h"
#include "kernels/reduce.h"
#include "kernels/variants.h"

namespace tccl::kernels {
namespace {

const CompressionKernel& compression_kernel_for(WireFormat format) {
  const CompressionKernels& compression_kernels = *best_variant().compression_kernels;
  return format == WireFormat::int8 ? compression_kernels.int8 : compression_kernels.bfloat16;
}

}  // namespace

void reduce(void* destination, std::span<const void* const> sources, std::size_t count, DType dtype,
            ReduceOp op, std::span<const double> factors, void* second_destination,
            std::size_t divisor) {
  const DefaultFloatMode float_mode;
  best_variant().reduce({destination, second_destination, sources.data(), sources.size(), count,
                         factors.data(), divisor != 0 ? divisor : sources.size(), dtype, op});
}

void copy_nontemporal(void* to, const void* from, std::size_t bytes) {
  best_variant().copy_nontemporal(static_cast<unsigned char*>(to),
                                  static_cast<const unsigned char*>(from), bytes);
}

void copy(void* to, const void* from, std::size_t bytes) {
  constexpr std::size_t kMaxMemcpyBytes = 2048;  // up to here memcpy() uses vectors as well
  if (bytes <= kMaxMemcpyBytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
    return;
  }
  best_variant().copy(static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from),
                      bytes);
}

std::size_t compressed_bytes(WireFormat format, std::size_t count) {
  switch (format) {
    case WireFormat::by_setting:  // the caller has replaced it by the setting's format
    case WireFormat::uncompressed:
      return count * sizeof(float);
    case WireFormat::bfloat16:
      return count * 2;
    case WireFormat::int8:
      return count + (count + kCompressionBlock - 1) / kCompressionBlock * sizeof(float);
  }
  __builtin_trap();
}

void compress(void* to, const float* from, std::size_t count, WireFormat format) {
  if (format == WireFormat::uncompressed) return copy(to, from, count * sizeof(float));
  const DefaultFloatMode float_mode;
  compression_kernel_for(format).compress(static_cast<unsigned char*>(to),
                                          reinterpret_cast<const unsigned char*>(from), count);
}

void decompress(float* to, const void* from, std::size_t count, WireFormat format) {
  if (format == WireFormat::uncompressed) return copy(to, from, count * sizeof(float));
  const DefaultFloatMode float_mode;
  compression_kernel_for(format).decompress(reinterpret_cast<unsigned char*>(to),
                                            static_cast<const unsigned char*>(from), count);
}

}  // namespace tccl::kernels
