// Log lines on stderr:
//
//   tccl 2026-11-18T07:33:12.345 node7 rank 3 world warn: CCL_MNIC has no effect here
//
// that is: local time, host, rank, group ("-" if none is known), level and text, always in this
// order and separated by blanks. Without a rank the line has the pid instead.
//
// Thread safety: may be called from any thread; a line is written at once.
#pragma once

#include <cstdint>
#include <string_view>

namespace tccl {

/// As CCL_LOG_LEVEL names them.
enum class LogLevel : std::uint8_t { error, warn, info, debug, trace };

struct LogSource {
  int rank = -1;  // negative: unknown
  std::string_view group = "-";
};

/// Lines above this level are not written. Process-wide: the newest Context sets it; before the
/// first one it is `warn`.
void set_log_level(LogLevel level) noexcept;

/// One relaxed load: check it before building a text.
[[nodiscard]] bool is_logged(LogLevel level) noexcept;

/// Writes one line, if the level is logged.
void log(LogLevel level, const LogSource& source, std::string_view text);

/// A warning where no group is known.
inline void log_warning(std::string_view text, int rank = -1) {
  log(LogLevel::warn, {.rank = rank}, text);
}

}  // namespace tccl
