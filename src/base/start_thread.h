// Starts a thread, or says which one could not be started and why.
// Thread safety: may be called from any thread.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "base/format.h"
#include "tccl/error.h"

namespace tccl {

/// `purpose` names the thread in the error: "the monitor thread". Throws Error{system}.
template <class Main>
std::thread start_thread(const char* purpose, Main&& main) {
  try {
    return std::thread(std::forward<Main>(main));
  } catch (const std::system_error& error) {
    throw Error(Errc::system,
                formatted("cannot start {}: {}: too many threads for RLIMIT_NPROC (ulimit -u), or "
                          "for pids.max of the container",
                          purpose, error.code().message()));
  }
}

}  // namespace tccl
