// One rank of a run: creates its context and communicators, runs its part of every case, checks.
#pragma once

#include <string>
#include <vector>

#include "board.h"
#include "cases.h"
#include "options.h"

namespace conformance {

/// What all ranks of a run are given.
struct Run {
  const Options& options;
  const std::vector<Case>& cases;
  Board& board;
  std::string store_directory;
};

/// Prints one line per failure and counts it on the board. Never throws.
void run_rank(const Run& run, int rank) noexcept;

/// The part of a failure's line that says which case it was and how to run it again.
std::string failure_line(const Run& run, const Case& one, const std::string& who,
                         const std::string& problem);

}  // namespace conformance
