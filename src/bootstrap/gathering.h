// Texts of many participants brought together through a store, in few operations of each.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "tccl/store.h"

namespace tccl {

/// The keys of one subject in a store, and how long to wait for them.
struct Desk {
  Store& store;
  std::string prefix;
  Deadline deadline;
  /// Runs now and then while waiting; what it throws ends the wait. May be empty.
  std::function<void()> look_around;

  [[nodiscard]] std::string key(std::string_view subject, int index) const;
  /// Waits until somebody has put the key there.
  [[nodiscard]] std::string read(const std::string& key) const;
};

/// Every participant brings a text; the first gets all of them in order, the others nothing. A
/// tree: each writes one key and reads two at most, however many there are.
std::vector<std::string> gather_texts(const Desk& desk, std::string_view subject, int index,
                                      int count, const std::string& text);

/// One participant's part of gather_texts() alone, for one that cannot wait for those below it.
void put_text(const Desk& desk, std::string_view subject, int index, const std::string& text);

/// What the first says, for everyone. Its key stays in the store.
std::string share_text(const Desk& desk, const std::string& subject, bool is_first,
                       const std::string& text);

}  // namespace tccl
