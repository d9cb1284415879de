// memcpy() with vector loads and stores, so that its speed does not depend on the addresses.
//
// From about 2 KiB on, the C library uses `rep movsb`. On AMD Zen 3 that takes 25 times as long if
// the destination is a few bytes above the source modulo the page size, and views into tensors have
// arbitrary addresses.
// Thread safety: functions without shared state.
#pragma once

#include <cstddef>

namespace tccl::kernels {

void copy(void* to, const void* from, std::size_t bytes);

/// Copies with non-temporal stores, which bypass the caches: for results too large to stay in them.
void copy_nontemporal(void* to, const void* from, std::size_t bytes);

}  // namespace tccl::kernels
