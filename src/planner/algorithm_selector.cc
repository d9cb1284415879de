#include "planner/algorithm_selector.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <limits>

#include "base/format.h"
#include "kernels/variants.h"
#include "kernels/float8.h"
#include "tccl/error.h"

namespace tccl {
namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

/// Where another algorithm than the operation's first is better.
struct Rule {
  Op op;
  const char* algorithm;
  std::size_t from_bytes;
  int from_ranks;
  bool only_float8 = false;
};

/// Measured: see docs/performance.md.
constexpr Rule kRules[] = {
    // Direct reads (P - 1) times the data on every rank, pipelined less than twice.
    {Op::allreduce, "two_shot", std::size_t{1} << 20, 6},
    {Op::reduce, "two_shot", std::size_t{1} << 20, 6},
    // Between hosts the number of bytes soon counts more than the number of messages.
    {Op::allreduce, "rails", std::size_t{32} << 10, 2},
    // The arithmetic costs more than the second meeting: let the ranks share it.
    {Op::allreduce, "two_shot", 1024, 2, /*only_float8=*/true},
};

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

/// For one host or for several.
bool is_for_hosts(const Algorithm& row) { return row.run_over_hosts != nullptr; }

bool is_first_of_its_kind(const Algorithm& row) {
  const auto same = [&](const Algorithm& other) {
    return other.op == row.op && is_for_hosts(other) == is_for_hosts(row);
  };
  return &*std::ranges::find_if(algorithms(), same) == &row;
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

AlgorithmSelector::AlgorithmSelector(const Settings& settings) {
  const auto entries = [this](Op op) -> auto& { return entries_[static_cast<std::size_t>(op)]; };
  for (const Algorithm& row : algorithms())
    if (is_first_of_its_kind(row)) entries(row.op).push_back({&row});  // it fits always
  for (const Rule& rule : kRules)
    entries(rule.op).push_back({.algorithm = &find(rule.op, rule.algorithm),
                                .from_bytes = rule.from_bytes,
                                .from_ranks = rule.from_ranks,
                                .only_float8 = rule.only_float8});
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const auto op = static_cast<Op>(i);
    try {
      for (const std::string_view rule : split(settings.algorithm[i], ';'))
        entries_[i].push_back(parse_rule(op, rule));
    } catch (const Error& problem) {
      throw Error(Errc::invalid_argument,
                  formatted("{}={}: {}", setting_of(op), settings.algorithm[i], problem.what()));
    }
  }
}

AlgorithmSelector::Entry AlgorithmSelector::parse_rule(Op op, std::string_view rule) {
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
  const auto& entries = entries_[static_cast<std::size_t>(op)];
  const auto fits = [&](const Entry& entry) {
    return is_for_hosts(*entry.algorithm) == several_hosts && entry.from_bytes <= bytes &&
           bytes <= entry.to_bytes && entry.from_ranks <= ranks &&
           (!entry.only_float8 || kernels::is_float8(dtype));
  };
  return *std::find_if(entries.rbegin(), entries.rend(), fits)->algorithm;
}

std::vector<AlgorithmChoice> AlgorithmSelector::choices() const {
  std::vector<AlgorithmChoice> rows;
  for (const auto& entries : entries_)
    for (const Entry& entry : entries)
      rows.push_back({entry.algorithm->op, entry.algorithm->name, entry.algorithm->doc,
                      entry.from_bytes, entry.to_bytes, entry.from_ranks,
                      entry.only_float8 ? "float8" : "all", is_for_hosts(*entry.algorithm),
                      entry.by_setting});
  return rows;
}

Info info() {
  const Settings settings = parse_environment();
  Info info;
  info.kernels = kernels::best_variant().name;
  info.algorithms = AlgorithmSelector(settings).choices();
  for (const SettingRow& row : setting_rows()) {
    const char* set = std::getenv(row.name);
    info.settings.push_back({row.name, set ? set : row.default_value, row.doc, set != nullptr});
  }
  return info;
}

}  // namespace tccl
