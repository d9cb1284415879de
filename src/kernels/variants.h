// Table of the kernels' variants, one per instruction set, and which of them this CPU can run. All
// variants compute the same bits.
// Thread safety: a constant table.
#pragma once

#include <span>

#include "kernels/compress_kernels.h"
#include "kernels/reduce_args.h"

namespace tccl::kernels {

struct Variant {
  const char* name;
  bool (*usable)();  // on this CPU
  void (*reduce)(const ReduceArgs& args);
  void (*copy)(unsigned char* to, const unsigned char* from, std::size_t bytes);
  void (*copy_nontemporal)(unsigned char* to, const unsigned char* from, std::size_t bytes);
  const CompressionKernels* compression_kernels;
};

/// In ascending order of preference; the first is always usable.
std::span<const Variant> variants();

/// The last usable variant. reduce(), copy() and compress() use it.
const Variant& best_variant();

}  // namespace tccl::kernels
