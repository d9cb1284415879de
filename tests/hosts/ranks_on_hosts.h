// Ranks as processes in network namespaces, for the tests of failures between hosts:
//
//   TCCL_NAMESPACES=/run/netns/a,/run/netns/b hosts_faults
//
// tests/hosts/test_faults.py creates the namespaces and runs each test.
#pragma once

#include <sstream>

#include "enter_network.h"
#include "faults/harness.h"

namespace faults {

inline void enter_host(int host) {
  std::istringstream names(std::getenv("TCCL_NAMESPACES"));
  std::string path;
  for (int i = 0; i <= host; ++i) std::getline(names, path, ',');
  enter_network(path);
}

/// Starts one rank per entry of `hosts`, in the network namespace of that host.
inline Ranks start_on_hosts(const std::vector<int>& hosts, const std::function<void(Rank&)>& body) {
  return {static_cast<int>(hosts.size()), [=](Rank& rank) {
            enter_host(hosts[static_cast<std::size_t>(rank.rank)]);
            body(rank);
          }};
}

inline void expect_sum(tccl::Communicator& comm) {
  std::vector<float> x(100'000, 1.0F);
  comm.run(tccl::allreduce(x.data(), x.data(), x.size(), DType::float32, ReduceOp::sum));
  for (const float value : x) check(value == static_cast<float>(comm.size()), "the sum");
}

inline std::string error_text_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const tccl::Error& error) {
    return error.what();
  }
  throw std::runtime_error("no error was thrown");
}

}  // namespace faults
