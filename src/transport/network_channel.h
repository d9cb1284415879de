// How an algorithm sees the ranks of other hosts: messages, in order, to and from each of them.
//
// What goes over the wire lies in memory of the wire's own, never in a tensor: the network may
// touch it until it has finished with it, however the operation ends. Between two ranks the n-th
// message sent is the n-th expected; both are part of the same operation, or the ranks disagree.
//
// One operation at a time, on one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "tccl/types.h"
#include "topology/host_map.h"

namespace tccl {

class NetworkChannel {
 public:
  /// The longest message. Larger ones fill a fast network better, smaller ones leave sooner.
  static constexpr std::size_t kMaxMessageBytes = std::size_t{128} << 10;

  /// Memory for one message, given back to the wire when nobody holds it and the network has
  /// finished with it.
  class Message {
   public:
    virtual ~Message() = default;
    /// Of kMaxMessageBytes. Of a message that is expected: once it was awaited.
    [[nodiscard]] virtual std::byte* data() noexcept = 0;
  };
  using MessagePtr = std::shared_ptr<Message>;

  virtual ~NetworkChannel() = default;
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual const HostMap& host_map() const noexcept = 0;
  /// What the sums of the operation travel as.
  [[nodiscard]] virtual WireFormat format() const noexcept = 0;

  [[nodiscard]] virtual MessagePtr acquire() = 0;
  /// Returns before it has left. The message must not be written to any more.
  virtual void send(const MessagePtr& message, std::size_t bytes, std::span<const int> to) = 0;
  void send(const MessagePtr& message, std::size_t bytes, int to) {
    send(message, bytes, std::span<const int>(&to, 1));
  }
  /// The next message of that rank; as soon as possible, so that it need not be kept elsewhere.
  [[nodiscard]] virtual MessagePtr post_receive(int from) = 0;
  /// Waits for it; its contents must be `bytes` long.
  virtual const std::byte* await(const MessagePtr& message, std::size_t bytes) = 0;
  /// The length of a message that may have any; waits for it.
  [[nodiscard]] virtual std::size_t received_bytes(const MessagePtr& message) = 0;
  /// Waits until at most this many messages of this rank have not left yet.
  virtual void flush(std::size_t at_most) = 0;
};

}  // namespace tccl
