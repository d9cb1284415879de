// Messages for people, on stderr only. Safe from any thread.
#pragma once

#include <string_view>

namespace tccl {

/// One line: "tccl: warning: <text>". `rank` < 0 means that none is known yet.
void log_warning(std::string_view text, int rank = -1);

}  // namespace tccl
