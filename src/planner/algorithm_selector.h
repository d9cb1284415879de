// Which algorithm runs a collective: a table by operation, size, ranks and dtype, which the
// settings override. Depends only on values that all ranks share.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <string_view>
#include <vector>

#include "algorithms/registry.h"
#include "config/settings.h"
#include "tccl/info.h"

namespace tccl {

class AlgorithmSelector {
 public:
  /// Throws Error{invalid_argument} for a setting that names an unknown algorithm or a bad range.
  explicit AlgorithmSelector(const Settings& settings);
  /// The rules of the table and of the settings, for people.
  [[nodiscard]] std::vector<AlgorithmChoice> choices() const;
  [[nodiscard]] const Algorithm& select(Op op, std::size_t bytes, int ranks, DType dtype,
                                        bool several_hosts = false) const;

 private:
  struct Entry {
    const Algorithm* algorithm;
    std::size_t from_bytes = 0;
    std::size_t to_bytes = std::numeric_limits<std::size_t>::max();
    int from_ranks = 1;
    bool only_float8 = false;
    bool by_setting = false;
  };
  static Entry parse_rule(Op op, std::string_view rule);

  std::array<std::vector<Entry>, kOpCount> entries_;  // by Op; the last that fits is followed
};

}  // namespace tccl
