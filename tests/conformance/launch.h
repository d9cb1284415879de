// Starts the ranks as processes or as threads, with a watchdog.
#pragma once

#include <functional>

#include "run_state.h"

namespace conformance {

struct Launch {
  int ranks;
  int watchdog_s;
  const RunState& state;
  std::function<void(int rank)> body;
};

/// Forks one process per rank and waits for all. Returns false if one failed or at the watchdog's
/// timeout.
bool run_as_processes(const Launch& launch);

/// One thread per rank. At the watchdog's timeout the process exits, because threads cannot be
/// killed.
bool run_as_threads(const Launch& launch);

}  // namespace conformance
