// The record that each rank leaves in the store while a group is formed: its host, its process, and
// whether it waits for the others. Others name the rank by it, and notice that its process has
// ended. The key is one of this rendezvous, so a record of an earlier one cannot be taken for it.
// Thread safety: functions without shared state.
#pragma once

#include <string>

#include "base/process_identity.h"
#include "rendezvous/store_collectives.h"

namespace tccl {

struct JoinRecord {
  bool joined = false;
  bool waiting = false;  // it completed its handshake on its host and waits for other ranks
  std::string process;   // "host b, pid 4711"
  ProcessIdentity identity{};
};

void publish_joined(const StoreClient& client, int rank);
void remove_join_record(const StoreClient& client, int rank) noexcept;
JoinRecord read_join_record(const StoreClient& client, int rank);

/// Marks this rank's record as waiting, once. Called from polling loops, so that a rendezvous that
/// completes without waiting costs no store operation.
class JoinRecordWriter {
 public:
  JoinRecordWriter(const StoreClient& client, int rank) : client_(client), rank_(rank) {}
  void write_waiting();

 private:
  const StoreClient& client_;
  int rank_;
  bool is_written_ = false;
};

}  // namespace tccl
