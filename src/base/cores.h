// Cores by number: lists as people write them, and which of them a thread may run on.
// Safe from any thread.
#pragma once

#include <pthread.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tccl {

/// "0,1,28-31" in the order given, repetitions kept. Throws Error{invalid_argument}.
std::vector<int> parse_cores(std::string_view text);

/// The other way round, with runs of numbers as ranges: "0,1,28-31".
std::string cores_text(std::span<const int> cores);

/// Those that the calling thread may run on, ascending.
std::vector<int> cores_of_this_thread();

/// Lets a thread run on these cores only; they may lie outside the process's own. False, and
/// nothing changes, if one of them is not online or not in this process's cpuset (cgroup).
bool pin(pthread_t thread, std::span<const int> cores);

}  // namespace tccl
