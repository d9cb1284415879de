// The command line of the conformance program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"

namespace conformance {

struct Options {
  CaseRequest request;
  bool list_algorithms = false;  // print the library's table of algorithms instead of running
  bool threads = false;
  bool shared = false;      // buffers come from Context::allocate, in half of the cases all of them
  std::uint64_t first = 0;  // cases that are run: [first, last]
  std::uint64_t last = UINT64_MAX;
  std::uint32_t first_sequence = 1;
  int watchdog_s = 60;
  std::vector<std::string> namespaces;  // network namespaces: the hosts
  std::vector<int> host_of;             // by rank: which of them; empty: all on this one
  std::vector<std::pair<std::string, std::string>> settings;  // environment of the ranks
};

/// Throws std::invalid_argument with a message for the user.
Options parse_options(int argc, char** argv);
std::string usage();
/// The arguments that run one case of the same list.
std::string command_for(const Options& options, std::uint64_t case_index);

}  // namespace conformance
