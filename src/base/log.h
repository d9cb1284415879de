// Log lines on stderr.
// Thread safety: may be called from any thread; a line is written at once.
#pragma once

#include <string_view>

namespace tccl {

/// Writes one line: "tccl: rank 3: warning: <text>", or "tccl: pid 4711: ..." if rank is negative.
void log_warning(std::string_view text, int rank = -1);

}  // namespace tccl
