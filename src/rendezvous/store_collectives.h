// Collectives of small texts over a key-value store, for participants that have no connection yet.
//
//   StoreClient client{store, "3f2a", deadline, while_waiting};
//   auto texts = store_allgather(client, "addresses", host_index, hosts, own_text);
//
// The gather is a binary tree: participant i reads the keys of 2i+1 and 2i+2, removes them and
// writes one key, so each performs a bounded number of store operations whatever the count.
// Thread safety: a StoreClient is used by one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "tccl/error.h"
#include "tccl/store.h"

namespace tccl {

/// How often a rank that waits looks for failures. A poll costs some requests to the store, so the
/// ranks together poll it about a thousand times a second, whatever their number.
constexpr std::chrono::milliseconds poll_interval_of(int size) {
  return std::chrono::milliseconds(std::clamp(size, 10, 100));
}

/// The participant has not written its key by the deadline.
struct StoreTimeout final : Error {
  StoreTimeout(const Error& error, int missing_participant)
      : Error(error), participant(missing_participant) {}
  int participant;
};

/// The keys of one rendezvous in a store, and until when to wait for them.
struct StoreClient {
  Store& store;
  std::string prefix;
  Deadline deadline;
  /// Called while waiting, with the participant that is to write the key; an exception ends the
  /// wait. May be empty.
  std::function<void(int participant)> while_waiting;
  std::chrono::milliseconds poll_interval{100};  // between two calls of it

  /// "prefix/round" and "prefix/round/index"
  [[nodiscard]] std::string key(std::string_view round) const;
  [[nodiscard]] std::string key(std::string_view round, int index) const;
  /// Waits until `participant` has written the key. Throws StoreTimeout at the deadline.
  [[nodiscard]] std::string read(const std::string& key, int participant) const;
};

/// Of the tree of a gather: how many levels of participants are below this one.
int levels_below(int participant, int count);

/// Participant 0 gets the texts of all in order, the others an empty vector. Leaves no key.
std::vector<std::string> store_gather(const StoreClient& client, std::string_view round, int index,
                                      int count, const std::string& text);

/// Every participant gets all texts in order. Participant 0's key, key(round), stays in the store:
/// the caller removes it once all participants have read it.
std::vector<std::string> store_allgather(const StoreClient& client, std::string_view round,
                                         int index, int count, const std::string& text);

/// Participant 0 sends `text`; every participant gets it. One key per receiver, which removes it,
/// so that no key is left and no further round must confirm that.
std::string store_broadcast(const StoreClient& client, std::string_view round, int index, int count,
                            const std::string& text);

/// Ignores failure: a store that cannot remove keys serves one group only.
void remove_key(Store& store, const std::string& key) noexcept;

}  // namespace tccl
