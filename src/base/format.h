// String formatting by fmt. fmt's implementation is compiled in format.cc only: including it
// everywhere would triple the build time.
// Thread safety: functions without shared state.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>
#include <vector>

namespace tccl {

std::string formatted_from(fmt::string_view format, fmt::format_args args);

template <class... Args>
std::string formatted(fmt::format_string<Args...> format, Args&&... args) {
  return formatted_from(format, fmt::make_format_args(args...));
}

/// "0,1,3"
std::string joined(const std::vector<int>& numbers);

/// "rank 2" or "ranks 0,1,3"
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace tccl
