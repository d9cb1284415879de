#include "communicator/choose.h"

#include <charconv>
#include <limits>

#include "base/format.h"
#include "tccl/error.h"

namespace tccl {
namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

const Algorithm& find(Op op, std::string_view name) {
  for (const Algorithm& row : algorithms())
    if (row.op == op && name == row.name) return row;
  throw Error(Errc::invalid_argument, formatted("{} has no algorithm \"{}\"", name_of(op), name));
}

std::size_t parse_limit(std::string_view text) {
  if (text == "max") return kNoLimit;
  std::size_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size())
    throw Error(Errc::invalid_argument, formatted("\"{}\" is not a size", text));
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = text.find(separator);
    if (!text.substr(0, end).empty()) parts.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return parts;
}

}  // namespace

AlgorithmTable::AlgorithmTable(const Settings& settings) {
  for (const Algorithm& row : algorithms()) {
    auto& forced = forced_[static_cast<std::size_t>(row.op)];
    if (!forced.empty()) continue;  // the operation's first row has parsed it
    for (const std::string_view rule :
         split(settings.algorithm[static_cast<std::size_t>(row.op)], ';')) {
      const auto colon = rule.find(':');
      const std::string_view range =
          colon == std::string_view::npos ? "0-max" : rule.substr(colon + 1);
      const auto dash = range.find('-');
      if (dash == std::string_view::npos)
        throw Error(Errc::invalid_argument, formatted("\"{}\" is not a range", range));
      forced.push_back({parse_limit(range.substr(0, dash)), parse_limit(range.substr(dash + 1)),
                        &find(row.op, rule.substr(0, colon))});
    }
  }
}

const Algorithm& AlgorithmTable::choose(Op op, std::size_t bytes) const {
  for (const Entry& entry : forced_[static_cast<std::size_t>(op)])
    if (entry.first <= bytes && bytes <= entry.last) return *entry.algorithm;
  const Algorithm* best = nullptr;
  for (const Algorithm& row : algorithms())
    if (row.op == op && row.from_bytes <= bytes) best = &row;
  return *best;
}

}  // namespace tccl
