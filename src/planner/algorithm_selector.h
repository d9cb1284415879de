// Which algorithm runs a collective: the default rules of the registry's rows, overridden by the
// settings CCL_<OPERATION>. The choice depends only on values that all ranks share.
//
//   const Algorithm& chosen = selector.select(Op::allreduce, bytes, ranks, dtype, several_hosts);
//
// Thread safety: immutable after construction.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "algorithms/registry.h"
#include "config/settings.h"
#include "tccl/info.h"

namespace tccl {

class AlgorithmSelector {
 public:
  /// Throws Error{invalid_argument} for a setting that names an unknown algorithm or a bad range.
  /// Tests pass a table of their own.
  explicit AlgorithmSelector(const Settings& settings,
                             std::span<const Algorithm> table = algorithms());
  /// All rules, and the algorithms without one, for tccl::info().
  [[nodiscard]] std::vector<AlgorithmRule> rules() const;
  [[nodiscard]] const Algorithm& select(Op op, std::size_t bytes, int ranks, DType dtype,
                                        bool several_hosts = false) const;

 private:
  struct Rule {
    const Algorithm* algorithm;
    std::size_t from_bytes = 0;
    std::size_t to_bytes = std::numeric_limits<std::size_t>::max();
    int from_ranks = 1;
    bool float8_only = false;
    bool by_setting = false;
  };
  void add_rules(const AlgorithmSetting& setting);
  /// Null for a name of oneCCL's that is not also one of ours.
  [[nodiscard]] const Algorithm* find(const AlgorithmSetting& setting, std::string_view name) const;
  /// None for a name of oneCCL's: the default applies.
  [[nodiscard]] std::optional<Rule> parse_rule(const AlgorithmSetting& setting,
                                               std::string_view rule) const;

  std::span<const Algorithm> table_;
  std::array<std::vector<Rule>, kOpCount> rules_;  // by Op; the last rule that applies wins
};

}  // namespace tccl
