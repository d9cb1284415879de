#include "rendezvous/join_record.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/format.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/store_collectives.h"
#include "tccl/error.h"

namespace tccl {
namespace {

constexpr std::string_view kWaiting = "\nwaiting";

std::string key_of(int rank) { return formatted("rank/{}", rank); }

std::string this_process() { return formatted("host {}, pid {}", host_name(), ::getpid()); }

}  // namespace

void publish_joined(Store& store, int rank) { store.set(key_of(rank), this_process()); }

void remove_join_record(Store& store, int rank) noexcept { remove_key(store, key_of(rank)); }

JoinRecord read_join_record(Store& store, int rank) {
  try {
    std::string text = store.get(key_of(rank), std::chrono::milliseconds(0));
    const bool waiting = text.ends_with(kWaiting);
    if (waiting) text.resize(text.size() - kWaiting.size());
    return {.joined = true, .waiting = waiting, .process = std::move(text)};
  } catch (const Error& error) {
    if (error.code() != Errc::timeout) throw;
    return {};  // there is no such key
  }
}

void JoinRecordWriter::write_waiting() {
  if (std::exchange(is_written_, true)) return;
  store_.set(key_of(rank_), this_process() + std::string(kWaiting));
}

}  // namespace tccl
