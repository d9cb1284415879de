#include "rendezvous/join_record.h"

#include <chrono>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "rendezvous/rendezvous.h"
#include "tccl/error.h"

namespace tccl {
namespace {

/// Lines: the process as error messages name it, its identity, and kWaiting or nothing.
constexpr std::string_view kWaiting = "waiting";

std::string key_of(const StoreClient& client, int rank) { return client.key("rank", rank); }

std::string record_of_this_process(std::string_view state) {
  return formatted("{}\n{}\n{}", this_process_text(), ProcessIdentity::of_this_process().text(),
                   state);
}

}  // namespace

void publish_joined(const StoreClient& client, int rank) {
  client.store.set(key_of(client, rank), record_of_this_process(""));
}

void remove_join_record(const StoreClient& client, int rank) noexcept {
  remove_key(client.store, key_of(client, rank));
}

JoinRecord read_join_record(const StoreClient& client, int rank) {
  try {
    std::istringstream text(client.store.get(key_of(client, rank), std::chrono::milliseconds(0)));
    JoinRecord record{.joined = true};
    std::string identity;
    std::string state;
    std::getline(text, record.process);
    std::getline(text, identity);
    std::getline(text, state);
    record.identity = ProcessIdentity::from_text(identity);
    record.waiting = state == kWaiting;
    return record;
  } catch (const Error& error) {
    if (error.code() != Errc::timeout) throw;
    return {};  // there is no such key
  }
}

void JoinRecordWriter::write_waiting() {
  if (std::exchange(is_written_, true)) return;
  client_.store.set(key_of(client_, rank_), record_of_this_process(kWaiting));
}

}  // namespace tccl
