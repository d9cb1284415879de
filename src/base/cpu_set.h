// Lists of logical CPUs, by Linux's numbers, and thread affinity. Texts for users call them CPUs,
// too; a core may have two.
// Thread safety: functions without shared state.
#pragma once

#include <pthread.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tccl {

/// Parses "0,1,28-31"; keeps order and duplicates; blanks may precede a number. Throws
/// Error{invalid_argument}.
std::vector<int> parse_cpus(std::string_view text);

/// Formats a list, with consecutive numbers as ranges: "0,1,28-31".
std::string cpus_text(std::span<const int> cpus);

/// The affinity mask of the calling thread, ascending.
std::vector<int> cpus_of_this_thread();

/// Sets a thread's affinity mask; the CPUs may be outside the process's own mask. Returns false
/// and changes nothing if one of them is not online or not in this process's cpuset (cgroup).
bool pin(pthread_t thread, std::span<const int> cpus);

/// Those of these CPUs to which pin() cannot pin a thread. Moves the calling thread for a moment.
std::vector<int> unavailable_cpus(std::span<const int> cpus);

}  // namespace tccl
