#include "transport/ofi/message_buffer.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tccl::ofi {
namespace {

constexpr std::size_t kMaxFreeBuffers = 256;

}  // namespace

Request& MessageBuffer::request_to(int rank) {
  Request& request = new_request();
  sends_.push_back({rank, &request});
  return request;
}

Request& MessageBuffer::request_from(int rank, std::uint64_t message_number) {
  from_ = rank;
  message_number_ = message_number;
  has_receive_ = true;
  return new_request();
}

Request& MessageBuffer::new_request() {
  if (used_requests_ == requests_.size()) requests_.emplace_back();
  return requests_[used_requests_++];
}

bool MessageBuffer::is_idle() const {
  for (std::size_t i = 0; i < used_requests_; ++i)
    if (!requests_[i].done()) return false;
  return true;
}

std::unique_ptr<MessageBuffer> BufferPool::acquire() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) reclaim_idle();
  if (free_.empty()) return std::make_unique<MessageBuffer>();
  auto buffer = std::move(free_.back());
  free_.pop_back();
  buffer->reset();
  return buffer;
}

void BufferPool::release(std::unique_ptr<MessageBuffer> buffer) {
  // Relaxed: set in the child while it has one thread.
  if (in_forked_child_.load(std::memory_order_relaxed)) {
    static_cast<void>(buffer.release());
    return;
  }
  cancel(*buffer);
  const std::lock_guard lock(mutex_);
  (buffer->is_idle() ? free_ : busy_).push_back(std::move(buffer));
  if (free_.size() > kMaxFreeBuffers) free_.pop_back();
}

void BufferPool::cancel(MessageBuffer& buffer) {
  // Relaxed: Network's lifetime orders it.
  Endpoint* endpoint = endpoint_.load(std::memory_order_relaxed);
  if (endpoint == nullptr || buffer.is_idle()) return;
  if (buffer.is_receiving()) endpoint->cancel(buffer.incoming());
  for (const auto& send : buffer.sends()) endpoint->stop_counting(*send.request);
}

void BufferPool::reclaim_idle() {
  const auto idle = std::partition(busy_.begin(), busy_.end(),
                                   [](const auto& buffer) { return !buffer->is_idle(); });
  std::move(idle, busy_.end(), std::back_inserter(free_));
  busy_.erase(idle, busy_.end());
}

}  // namespace tccl::ofi
