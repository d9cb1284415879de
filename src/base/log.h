// Messages for people, on stderr only. Safe from any thread.
#pragma once

#include <string_view>

namespace tccl {

/// One line: "tccl: rank 3: warning: <text>"; the pid stands for a rank that is not known yet.
void log_warning(std::string_view text, int rank = -1);

}  // namespace tccl
