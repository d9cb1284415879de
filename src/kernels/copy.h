// Copying into memory that another core will read next.
#pragma once

#include <cstddef>

namespace tccl::kernels {

/// memcpy past the caches: the stores do not fetch the lines from the core that read them last, and
/// leave this core's cache to others. Complete when it returns: a flag may be stored next. Safe
/// from any thread.
void copy_streaming(std::byte* to, const std::byte* from, std::size_t bytes);

/// Whether it is the faster way on this CPU: see docs/performance.md.
bool streaming_pays();

}  // namespace tccl::kernels
