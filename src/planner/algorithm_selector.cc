#include "planner/algorithm_selector.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>

#include "base/format.h"
#include "kernels/float8.h"
#include "tccl/error.h"

namespace tccl {
namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

const Algorithm& find(Op op, std::string_view name) {
  for (const Algorithm& row : algorithms())
    if (row.op == op && name == row.name) return row;
  std::string known;
  for (const Algorithm& row : algorithms())
    if (row.op == op) known += formatted("{}{}", known.empty() ? "" : ", ", row.name);
  throw Error(Errc::invalid_argument,
              formatted("there is no algorithm \"{}\", only {}", name, known));
}

/// "CCL_ALLREDUCE"
std::string setting_of(Op op) {
  std::string name(name_of(op));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
  return "CCL_" + name;
}

bool is_for_several_hosts(const Algorithm& row) { return row.run_over_hosts != nullptr; }

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

AlgorithmSelector::AlgorithmSelector(const Settings& settings) {
  const auto rules = [this](Op op) -> auto& { return rules_[static_cast<std::size_t>(op)]; };
  for (const Algorithm& row : algorithms())
    for (const Algorithm::Rule& rule : row.rules)
      rules(row.op).push_back({.algorithm = &row,
                               .from_bytes = rule.from_bytes,
                               .from_ranks = rule.from_ranks,
                               .float8_only = rule.float8_only});
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const auto op = static_cast<Op>(i);
    try {
      for (const std::string_view rule : split(settings.algorithm[i], ';'))
        rules_[i].push_back(parse_rule(op, rule));
    } catch (const Error& problem) {
      throw Error(Errc::invalid_argument,
                  formatted("{}={}: {}", setting_of(op), settings.algorithm[i], problem.what()));
    }
  }
}

AlgorithmSelector::Rule AlgorithmSelector::parse_rule(Op op, std::string_view rule) {
  const auto colon = rule.find(':');
  const std::string_view range = colon == std::string_view::npos ? "0-max" : rule.substr(colon + 1);
  const auto dash = range.find('-');
  if (dash == std::string_view::npos)
    throw Error(Errc::invalid_argument, formatted("\"{}\" is not a range", range));
  return {.algorithm = &find(op, rule.substr(0, colon)),
          .from_bytes = parse_limit(range.substr(0, dash)),
          .to_bytes = parse_limit(range.substr(dash + 1)),
          .by_setting = true};
}

const Algorithm& AlgorithmSelector::select(Op op, std::size_t bytes, int ranks, DType dtype,
                                           bool several_hosts) const {
  const auto& rules = rules_[static_cast<std::size_t>(op)];
  const auto applies = [&](const Rule& rule) {
    return is_for_several_hosts(*rule.algorithm) == several_hosts && rule.from_bytes <= bytes &&
           bytes <= rule.to_bytes && rule.from_ranks <= ranks &&
           (!rule.float8_only || kernels::is_float8(dtype));
  };
  return *std::find_if(rules.rbegin(), rules.rend(), applies)->algorithm;
}

std::vector<AlgorithmRule> AlgorithmSelector::rules() const {
  std::vector<AlgorithmRule> rows;
  for (const auto& rules : rules_)
    for (const Rule& rule : rules)
      rows.push_back({rule.algorithm->op, rule.algorithm->name, rule.algorithm->doc,
                      rule.from_bytes, rule.to_bytes, rule.from_ranks,
                      rule.float8_only ? "float8" : "all", is_for_several_hosts(*rule.algorithm),
                      rule.by_setting});
  return rows;
}

}  // namespace tccl
