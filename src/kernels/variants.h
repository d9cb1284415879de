// The kernels once per instruction set, and which of them this CPU can run. All give the same bits.
// Safe from any thread.
#pragma once

#include <span>

#include "kernels/job.h"
#include "kernels/packing.h"

namespace tccl::kernels {

struct Variant {
  const char* name;
  bool (*usable)();  // on this CPU
  void (*reduce)(const Job& job);
  void (*copy)(unsigned char* to, const unsigned char* from, std::size_t bytes);
  void (*stream)(unsigned char* to, const unsigned char* from, std::size_t bytes);
  const Packings* packings;
};

/// From the plainest to the best; the first is always usable.
std::span<const Variant> variants();

/// What reduce() uses: the last usable one.
const Variant& best_variant();

}  // namespace tccl::kernels
