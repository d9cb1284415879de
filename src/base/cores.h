// Lists of core numbers, and thread affinity. Thread-safe.
#pragma once

#include <pthread.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tccl {

/// Parses "0,1,28-31"; keeps order and duplicates. Throws Error{invalid_argument}.
std::vector<int> parse_cores(std::string_view text);

/// Formats a list, with consecutive numbers as ranges: "0,1,28-31".
std::string cores_text(std::span<const int> cores);

/// The affinity mask of the calling thread, ascending.
std::vector<int> cores_of_this_thread();

/// Sets a thread's affinity mask; the cores may be outside the process's own mask. Returns false
/// and changes nothing if one of them is not online or not in this process's cpuset (cgroup).
bool pin(pthread_t thread, std::span<const int> cores);

}  // namespace tccl
