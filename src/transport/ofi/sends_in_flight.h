// Messages in flight: libfabric has accepted them and has not completed their sends. (Queued: it
// has not accepted them yet.) Collectives and point-to-point traffic of a group each have one such
// list.
// Thread safety: one thread at a time.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/function_ref.h"
#include "transport/membership.h"
#include "transport/ofi/network.h"

namespace tccl::ofi {

/// libfabric reports an error, the control connection reports that the peer has died a moment
/// later. An error is thrown as such only if no better explanation arrives within this time.
inline constexpr std::chrono::milliseconds kErrorGrace{500};

class SendsInFlight {
 public:
  void add(std::shared_ptr<MessageBuffer> buffer) { buffers_.push_back(std::move(buffer)); }
  [[nodiscard]] bool empty() const noexcept { return buffers_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return buffers_.size(); }
  [[nodiscard]] const MessageBuffer& oldest() const { return *buffers_.front(); }

  struct SendError {
    int rank;
    std::string reason;
  };
  /// Removes messages that were sent. Returns the first error of their sends, if any.
  std::optional<SendError> remove_completed();
  /// The same, up to the first message that is not sent: a call costs no more than what it removes.
  std::optional<SendError> remove_completed_in_order();

  /// Waits until every message was sent or its receivers have departed or died, the group has
  /// failed, or the deadline. `send_queued` sends messages that libfabric did not accept before;
  /// returns true if none remains. The list is empty afterwards.
  void close(Network& network, const Membership& membership, Deadline deadline,
             FunctionRef<bool()> send_queued) noexcept;

 private:
  std::deque<std::shared_ptr<MessageBuffer>> buffers_;
};

}  // namespace tccl::ofi
