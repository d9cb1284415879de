// Texts of many participants brought together through a store, in few operations of each.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "tccl/store.h"

namespace tccl {

/// The keys of one meeting in a store, and how long to wait for them.
struct StoreClient {
  Store& store;
  std::string prefix;
  Deadline deadline;
  /// Runs now and then while waiting; what it throws ends the wait. May be empty.
  std::function<void()> on_poll;

  /// What one of the participants, or one for all of them, says about a round.
  [[nodiscard]] std::string key(std::string_view round, int index) const;
  [[nodiscard]] std::string key(std::string_view round) const;
  /// Waits until somebody has put the key there.
  [[nodiscard]] std::string read(const std::string& key) const;
};

/// Every participant brings a text; the first gets all of them in order, the others nothing. A
/// tree: each writes one key and reads two at most, however many there are.
std::vector<std::string> store_gather(const StoreClient& store_client, std::string_view round,
                                      int index, int count, const std::string& text);

/// The same for everyone. The first one's key stays in the store.
std::vector<std::string> store_allgather(const StoreClient& store_client, std::string_view round,
                                         int index, int count, const std::string& text);

/// Instead of store_allgather(), by one that waits for nobody any more: what the others get may
/// lack other texts, but not this one.
void store_contribute(const StoreClient& store_client, std::string_view round, int index,
                      const std::string& text);

/// Not every store can remove keys; then it serves one group only.
void remove_key(Store& store, const std::string& key) noexcept;

}  // namespace tccl
