#include "communicator/choose.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>

#include "base/format.h"
#include "kernels/variants.h"
#include "tccl/error.h"

namespace tccl {
namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

enum class Dtypes : std::uint8_t { all, float8 };

/// Where another algorithm than the operation's first is better. The last row that fits wins.
struct Rule {
  Op op;
  const char* algorithm;
  std::size_t from_bytes;
  int from_ranks;
  Dtypes dtypes = Dtypes::all;
};

/// Measured: see docs/performance.md.
constexpr Rule kRules[] = {
    // Direct reads (P - 1) times the data on every rank, pipelined less than twice.
    {Op::allreduce, "pipelined", std::size_t{1} << 20, 6},
    {Op::reduce, "pipelined", std::size_t{1} << 20, 6},
    // The arithmetic costs more than the second meeting: let the ranks share it.
    {Op::allreduce, "pipelined", 1024, 2, Dtypes::float8},
};

constexpr bool is_float8(DType dtype) {
  return dtype == DType::float8_e4m3fn || dtype == DType::float8_e5m2 ||
         dtype == DType::float8_e4m3fnuz || dtype == DType::float8_e5m2fnuz;
}

const Algorithm& first_of(Op op) { return *std::ranges::find(algorithms(), op, &Algorithm::op); }

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

const Algorithm& AlgorithmTable::choose(Op op, std::size_t bytes, int ranks, DType dtype) const {
  for (const Entry& entry : forced_[static_cast<std::size_t>(op)])
    if (entry.first <= bytes && bytes <= entry.last) return *entry.algorithm;
  const char* name = nullptr;
  for (const Rule& rule : kRules)
    if (rule.op == op && rule.from_bytes <= bytes && rule.from_ranks <= ranks &&
        (rule.dtypes == Dtypes::all || is_float8(dtype)))
      name = rule.algorithm;
  return name ? find(op, name) : first_of(op);
}

std::vector<AlgorithmChoice> AlgorithmTable::choices() const {
  std::vector<AlgorithmChoice> rows;
  for (const Algorithm& algorithm : algorithms())
    if (&algorithm == &first_of(algorithm.op))
      rows.push_back({algorithm.op, algorithm.name, algorithm.doc, 0, kNoLimit, 1, "all", false});
  for (const Rule& rule : kRules)
    rows.push_back({rule.op, rule.algorithm, find(rule.op, rule.algorithm).doc, rule.from_bytes,
                    kNoLimit, rule.from_ranks, rule.dtypes == Dtypes::all ? "all" : "float8",
                    false});
  for (const Algorithm& algorithm : algorithms())
    if (&algorithm == &first_of(algorithm.op))
      for (const Entry& entry : forced_[static_cast<std::size_t>(algorithm.op)])
        rows.push_back({algorithm.op, entry.algorithm->name, entry.algorithm->doc, entry.first,
                        entry.last, 1, "all", true});
  std::ranges::stable_sort(rows, {}, &AlgorithmChoice::op);
  return rows;
}

Info info() {
  const Settings settings = settings_from_environment();
  Info info;
  info.kernels = kernels::best_variant().name;
  info.algorithms = AlgorithmTable(settings).choices();
  for (const SettingRow& row : setting_rows()) {
    const char* set = std::getenv(row.name);
    info.settings.push_back({row.name, set ? set : row.default_value, row.doc, set != nullptr});
  }
  return info;
}

}  // namespace tccl
