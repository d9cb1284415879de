// Memory for network messages, and the pool that recycles it.
//
// libfabric may read or write a buffer until its request completes, even after fi_cancel(). So a
// message is never sent from or received into a tensor: it is in a MessageBuffer, which the pool
// reuses only once libfabric has finished with it, however the operation ended.
//
//   std::shared_ptr<MessageBuffer> buffer = network.acquire_buffer();
//   endpoint.send(peer, tag, buffer->first(bytes), buffer->request_to(rank));
//   buffer.reset();   // sent later; then the pool reuses the memory
//
// Thread safety: the methods of BufferPool may be called from any thread. A MessageBuffer is used
// by one thread at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "transport/network_channel.h"
#include "transport/ofi/endpoint.h"

namespace tccl::ofi {

/// Memory for one message, and the requests that use it: one receive, or one send per destination.
class MessageBuffer final : public NetworkChannel::Message {
 public:
  /// Every message starts with a header of the transport.
  static constexpr std::size_t kHeaderBytes = 64;
  static constexpr std::size_t kBytes = kHeaderBytes + NetworkChannel::kMaxMessageBytes;

  MessageBuffer() : memory_(new std::byte[kBytes]) {}
  [[nodiscard]] std::byte* data() noexcept override { return memory_.get() + kHeaderBytes; }
  [[nodiscard]] std::byte* header() noexcept { return memory_.get(); }
  /// The header and the first `payload_bytes` of the payload.
  [[nodiscard]] std::span<std::byte> first(std::size_t payload_bytes) {
    return {memory_.get(), kHeaderBytes + payload_bytes};
  }

  /// A request for one more send from this buffer.
  Request& request_to(int rank);
  /// The request for the receive into this buffer: message `message_number` of that rank.
  Request& request_from(int rank, std::uint64_t message_number);
  /// Whether all requests have completed.
  [[nodiscard]] bool is_idle() const;
  [[nodiscard]] bool is_receiving() const { return has_receive_ && !requests_.front().done(); }
  struct Send {
    int to;
    Request* request;
  };
  [[nodiscard]] std::span<const Send> sends() const { return sends_; }
  /// The receive: its request, the sender, and which of the sender's messages it is.
  [[nodiscard]] Request& incoming() { return requests_.front(); }
  [[nodiscard]] int from() const { return from_; }
  [[nodiscard]] std::uint64_t message_number() const { return message_number_; }
  /// Prepares an idle buffer for its next message.
  void reset() {
    used_requests_ = 0;
    has_receive_ = false;
    sends_.clear();
  }

 private:
  Request& new_request();

  std::unique_ptr<std::byte[]> memory_;  // NOLINT(modernize-avoid-c-arrays)
  std::deque<Request> requests_;         // a deque: libfabric holds their addresses
  std::vector<Send> sends_;
  bool has_receive_ = false;
  int from_ = -1;
  std::uint64_t message_number_ = 0;
  std::size_t used_requests_ = 0;
};

/// Buffers without an owner: free ones, and those whose requests have not completed.
class BufferPool {
 public:
  /// Until the endpoint is set, and after it is unset, released buffers are not cancelled.
  void set_endpoint(Endpoint* endpoint) noexcept {
    endpoint_.store(endpoint, std::memory_order_relaxed);  // Network's lifetime orders it
  }
  std::unique_ptr<MessageBuffer> acquire();
  /// Cancels the buffer's requests; the buffer is reused when they have completed.
  void release(std::unique_ptr<MessageBuffer> buffer);
  /// In a forked child: later releases leak their buffer, because its locks may be held for ever.
  void close_in_child() noexcept {
    in_forked_child_.store(true, std::memory_order_relaxed);  // one thread exists
  }

 private:
  void cancel(MessageBuffer& buffer);
  void reclaim_idle();

  std::atomic<Endpoint*> endpoint_{nullptr};
  std::atomic<bool> in_forked_child_{false};
  std::mutex mutex_;  // guards the rest
  std::vector<std::unique_ptr<MessageBuffer>> free_;
  std::vector<std::unique_ptr<MessageBuffer>> busy_;
};

}  // namespace tccl::ofi
