// The record that each rank leaves in the store under "rank/<r>" while a group is formed: its host,
// its pid, and whether it waits for the others. Error messages name the processes that it
// describes.
// Thread safety: functions without shared state.
#pragma once

#include <string>

#include "tccl/store.h"

namespace tccl {

struct JoinRecord {
  bool joined = false;
  bool waiting = false;  // it completed its handshake on its host and waits for other ranks
  std::string process;   // "host b, pid 4711"
};

void publish_joined(Store& store, int rank);
void remove_join_record(Store& store, int rank) noexcept;
JoinRecord read_join_record(Store& store, int rank);

/// Marks this rank's record as waiting, once. Called from polling loops, so that a rendezvous that
/// completes without waiting costs no store operation.
class JoinRecordWriter {
 public:
  JoinRecordWriter(Store& store, int rank) : store_(store), rank_(rank) {}
  void write_waiting();

 private:
  Store& store_;
  int rank_;
  bool is_written_ = false;
};

}  // namespace tccl
