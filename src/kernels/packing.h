// What pack() and the files compiled per instruction set share, without library types for the
// reason given in job.h.
#pragma once

#include <cstddef>

namespace tccl::kernels {

/// Elements with a scale of their own in WireFormat::int8.
inline constexpr std::size_t kPackBlock = 128;

/// To and from one format. Addresses need no alignment; `count` is elements.
struct Packing {
  void (*pack)(unsigned char* to, const unsigned char* from, std::size_t count);
  void (*unpack)(unsigned char* to, const unsigned char* from, std::size_t count);
};

struct Packings {
  Packing bfloat16;
  Packing int8;
};

}  // namespace tccl::kernels
