// Which algorithm runs a collective: a table by operation, size, ranks and dtype, which the
// settings override. Depends only on values that all ranks share.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "base/settings.h"
#include "tccl/info.h"

namespace tccl {

class AlgorithmTable {
 public:
  /// Throws Error{invalid_argument} for a setting that names an unknown algorithm or a bad range.
  explicit AlgorithmTable(const Settings& settings);
  /// The rules of the table and of the settings, for people.
  [[nodiscard]] std::vector<AlgorithmChoice> choices() const;
  [[nodiscard]] const Algorithm& choose(Op op, std::size_t bytes, int ranks, DType dtype) const;

 private:
  struct Entry {
    std::size_t first;
    std::size_t last;
    const Algorithm* algorithm;
  };
  std::array<std::vector<Entry>, kOpCount> forced_;  // by Op, from the settings
};

}  // namespace tccl
