#define FMT_HEADER_ONLY 1

#include "base/format.h"

#include <fmt/format.h>

namespace tccl {

std::string formatted_from(fmt::string_view format, fmt::format_args args) {
  return fmt::vformat(format, args);
}

std::string joined(const std::vector<int>& numbers) {
  return fmt::format("{}", fmt::join(numbers, ","));
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ","));
}

}  // namespace tccl
