// Table of the compression kernels of one instruction set. No standard-library types, for the
// reason given in reduce_args.h.
// Thread safety: a constant table.
#pragma once

#include <cstddef>

namespace tccl::kernels {

/// Elements per block of WireFormat::int8. Each block has its own scale.
inline constexpr std::size_t kCompressionBlock = 128;

/// Kernels of one wire format. Addresses need no alignment; `count` is elements.
struct CompressionKernel {
  void (*compress)(unsigned char* to, const unsigned char* from, std::size_t count);
  void (*decompress)(unsigned char* to, const unsigned char* from, std::size_t count);
};

struct CompressionKernels {
  CompressionKernel bfloat16;
  CompressionKernel int8;
};

}  // namespace tccl::kernels
