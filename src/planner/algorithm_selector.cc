#include "planner/algorithm_selector.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/format.h"
#include "kernels/float8.h"
#include "planner/oneccl_algorithms.h"
#include "tccl/error.h"

namespace tccl {
namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

bool is_for_several_hosts(const Algorithm& row) { return row.run_over_hosts != nullptr; }

bool may_name(const AlgorithmSetting& setting, const Algorithm& row) {
  return row.op == setting.op && (is_for_several_hosts(row) || !setting.over_hosts);
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

AlgorithmSelector::AlgorithmSelector(const Settings& settings, std::span<const Algorithm> table)
    : table_(table) {
  const auto rules = [this](Op op) -> auto& { return rules_[static_cast<std::size_t>(op)]; };
  for (const Algorithm& row : table_)
    for (const Algorithm::Rule& rule : row.rules)
      rules(row.op).push_back({.algorithm = &row,
                               .from_bytes = rule.from_bytes,
                               .from_ranks = rule.from_ranks,
                               .float8_only = rule.float8_only});
  for (const AlgorithmSetting& setting : settings.algorithms) add_rules(setting);
}

void AlgorithmSelector::add_rules(const AlgorithmSetting& setting) {
  try {
    for (const std::string_view text : split(setting.text, ';'))
      if (const auto rule = parse_rule(setting, text))
        rules_[static_cast<std::size_t>(setting.op)].push_back(*rule);
  } catch (const Error& problem) {
    throw Error(Errc::invalid_argument,
                formatted("{}={}: {}", setting.variable, setting.text, problem.what()));
  }
}

const Algorithm* AlgorithmSelector::find(const AlgorithmSetting& setting,
                                         std::string_view name) const {
  std::string known;
  for (const Algorithm& row : table_) {
    if (!may_name(setting, row)) continue;
    if (name == row.name) return &row;
    known += formatted("{}{}", known.empty() ? "" : ", ", row.name);
  }
  if (is_oneccl_algorithm(name)) return nullptr;
  throw Error(Errc::invalid_argument,
              formatted("there is no algorithm \"{}\", only {}", name, known));
}

std::optional<AlgorithmSelector::Rule> AlgorithmSelector::parse_rule(
    const AlgorithmSetting& setting, std::string_view rule) const {
  const auto colon = rule.find(':');
  const Algorithm* algorithm = find(setting, rule.substr(0, colon));
  if (algorithm == nullptr) return std::nullopt;
  const std::string_view range = colon == std::string_view::npos ? "0-max" : rule.substr(colon + 1);
  const auto dash = range.find('-');
  if (dash == std::string_view::npos)
    throw Error(Errc::invalid_argument, formatted("\"{}\" is not a range", range));
  return Rule{.algorithm = algorithm,
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
  const auto found = std::find_if(rules.rbegin(), rules.rend(), applies);
  if (found == rules.rend())
    throw Error(Errc::internal, formatted("no algorithm for {} of {} bytes on {} ranks",
                                          name_of(op), bytes, ranks));
  return *found->algorithm;
}

std::vector<AlgorithmRule> AlgorithmSelector::rules() const {
  std::vector<AlgorithmRule> rows;
  const auto add = [&](const Rule& rule, bool applies) {
    rows.push_back({rule.algorithm->op, rule.algorithm->name, rule.algorithm->doc, rule.from_bytes,
                    rule.to_bytes, rule.from_ranks, rule.float8_only ? "float8" : "all",
                    is_for_several_hosts(*rule.algorithm), rule.by_setting, applies});
  };
  for (const auto& rules : rules_)
    for (const Rule& rule : rules) add(rule, /*applies=*/true);
  for (const Algorithm& row : table_)
    if (row.rules.empty()) add({.algorithm = &row}, /*applies=*/false);
  return rows;
}

}  // namespace tccl
