// How an algorithm exchanges messages with ranks of other hosts.
//
//   NetworkChannel::MessagePtr receive = channel.post_receive(peer);
//   NetworkChannel::MessagePtr message = channel.acquire();
//   std::memcpy(message->data(), input, bytes);
//   channel.send(message, bytes, peer);
//   const std::byte* data = channel.await(receive, bytes);
//
// Messages are in memory of the channel, never in a tensor: the network may access that memory even
// after the operation has failed. Messages between two ranks match in order: the n-th send matches
// the n-th receive. Both belong to the same operation; otherwise await() throws Error{mismatch}.
//
// Thread safety: one operation at a time, on one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "tccl/types.h"
#include "topology/host_map.h"

namespace tccl {

class NetworkChannel {
 public:
  /// Length limit of a message. Longer messages use a fast network better; shorter ones are
  /// pipelined better.
  static constexpr std::size_t kMaxMessageBytes = std::size_t{128} << 10;

  /// Memory for one message. It returns to the channel when the last reference is gone and the
  /// network has finished with it.
  class Message {
   public:
    virtual ~Message() = default;
    /// kMaxMessageBytes long. Of a receive: valid after await().
    [[nodiscard]] virtual std::byte* data() noexcept = 0;
  };
  using MessagePtr = std::shared_ptr<Message>;

  virtual ~NetworkChannel() = default;
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual const HostMap& host_map() const noexcept = 0;
  /// Format in which the operation's float32 sums are sent (CCL_WIRE_DTYPE).
  [[nodiscard]] virtual WireFormat wire_format() const noexcept = 0;

  /// Memory for a message to send.
  [[nodiscard]] virtual MessagePtr acquire() = 0;
  /// Returns before the message was sent. The message must not be modified any more.
  virtual void send(const MessagePtr& message, std::size_t bytes, std::span<const int> to) = 0;
  void send(const MessagePtr& message, std::size_t bytes, int to) {
    send(message, bytes, std::span<const int>(&to, 1));
  }
  /// Posts a receive for the next message of that rank. Call it early: a message that arrives
  /// before its receive is copied once more.
  [[nodiscard]] virtual MessagePtr post_receive(int from) = 0;
  /// Waits for a posted receive; the message must have `bytes`. Returns its data.
  virtual const std::byte* await(const MessagePtr& message, std::size_t bytes) = 0;
  /// Waits for a posted receive of any length; returns the length.
  [[nodiscard]] virtual std::size_t received_bytes(const MessagePtr& message) = 0;
  /// Waits until at most this many messages of this rank are in flight.
  virtual void flush(std::size_t at_most) = 0;
};

}  // namespace tccl
