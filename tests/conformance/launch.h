// Ranks as processes or as threads, and the watchdog over them.
#pragma once

#include <functional>

#include "board.h"

namespace conformance {

struct Launch {
  int ranks;
  int watchdog_s;
  const Board& board;
  std::function<void(int rank)> body;
};

/// Forks one process per rank and waits for all. False if one crashed or the watchdog ended them.
bool run_as_processes(const Launch& launch);

/// One thread per rank. Threads cannot be killed: without progress the whole process ends.
bool run_as_threads(const Launch& launch);

}  // namespace conformance
