// Ranks that have begun a rendezvous, as a test that plays another rank sees them.
#pragma once

#include "harness.h"
#include "rendezvous/host_discovery.h"
#include "rendezvous/join_record.h"

namespace faults {

/// The keys of the rendezvous that rank 0 has begun in this store.
inline tccl::StoreClient client_of(tccl::Store& store) {
  // The first 64 digits are the secret; the rest of the value is its check.
  const std::string secret = store.get("secret", 20s).substr(0, 64);
  return tccl::store_client_for(
      {.store = &store, .secret = secret, .deadline = tccl::deadline_after(20s)}, {});
}

inline void await_waiting(const tccl::StoreClient& store, int rank) {
  const auto deadline = tccl::deadline_after(20s);
  while (!tccl::read_join_record(store, rank).waiting) {
    check(tccl::Clock::now() < deadline, "the rank waits");
    std::this_thread::sleep_for(1ms);
  }
}

inline void kill_joined_rank(const tccl::StoreClient& store, int rank) {
  const std::string process = tccl::read_join_record(store, rank).process;  // "host b, pid 4711"
  ::kill(std::stoi(process.substr(process.rfind(' '))), SIGKILL);
}

}  // namespace faults
