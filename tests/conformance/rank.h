// One rank of a run: creates its context and communicators, runs its part of every case, checks the
// results.
#pragma once

#include <string>
#include <vector>

#include "cases.h"
#include "options.h"
#include "run_state.h"

namespace conformance {

/// Arguments common to all ranks.
struct Run {
  const Options& options;
  const std::vector<Case>& cases;
  RunState& state;
  std::string store_directory;
};

/// Prints one line per failure and counts it in RunState. Never throws.
void run_rank(const Run& run, int rank) noexcept;

/// One line: the case, the problem, and the command that repeats it.
std::string failure_line(const Run& run, const Case& one, const std::string& who,
                         const std::string& problem);

}  // namespace conformance
