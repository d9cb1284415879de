#include "transport/ofi/network.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "tccl/error.h"

namespace tccl::ofi {
namespace {

/// What has not left after this time goes to somebody who no longer takes it.
constexpr std::chrono::milliseconds kLastWords{2000};

/// Enough that cells seldom find none posted.
constexpr std::size_t kPostedReceives = 32;

/// The first free port of the range; libfabric takes a fixed one, or any.
std::unique_ptr<Endpoint> open_endpoint(const Settings& settings, const std::string& address) {
  const PortRange ports = settings.ports;
  std::string problem;
  for (std::uint32_t port = ports.first; port <= ports.last; ++port) {
    try {
      return std::make_unique<Endpoint>(
          Endpoint::Options{settings.provider, address, static_cast<std::uint16_t>(port)});
    } catch (const Error& error) {
      if (ports.last == 0) throw;
      problem = error.what();
    }
  }
  throw Error(Errc::system, formatted("CCL_PORT_RANGE: no port from {} to {} is free on {}; each "
                                      "process needs two of its own ({})",
                                      ports.first, ports.last, address, problem));
}

}  // namespace

Request& MessageBuffer::request_to(int rank) {
  Request& request = new_request();
  sends_.push_back({rank, &request});
  return request;
}

Request& MessageBuffer::request_from(int rank, std::uint64_t number) {
  from_ = rank;
  number_ = number;
  expects_ = true;
  return new_request();
}

Request& MessageBuffer::new_request() {
  if (used_ == requests_.size()) requests_.emplace_back();
  return requests_[used_++];
}

bool MessageBuffer::is_idle() const {
  for (std::size_t i = 0; i < used_; ++i)
    if (!requests_[i].done()) return false;
  return true;
}

/// Parcels that nobody holds: those that are free, and those that the network still uses.
struct Network::BufferPool {
  std::atomic<Endpoint*> endpoint{nullptr};
  std::atomic<bool> forked{false};
  std::mutex mutex;  // guards the rest
  std::vector<std::unique_ptr<MessageBuffer>> free;
  std::vector<std::unique_ptr<MessageBuffer>> busy;

  std::unique_ptr<MessageBuffer> take() {
    const std::lock_guard lock(mutex);
    if (free.empty()) sweep();
    if (free.empty()) return std::make_unique<MessageBuffer>();
    auto buffer = std::move(free.back());
    free.pop_back();
    buffer->reset();
    return buffer;
  }
  void give_back(std::unique_ptr<MessageBuffer> buffer) {
    if (forked.load(std::memory_order_relaxed)) {
      static_cast<void>(buffer.release());  // its locks may be held for ever
      return;
    }
    call_off(*buffer);
    const std::lock_guard lock(mutex);
    (buffer->is_idle() ? free : busy).push_back(std::move(buffer));
    if (free.size() > kMaxFree) free.pop_back();
  }
  void call_off(MessageBuffer& buffer) {
    Endpoint* open = endpoint.load(std::memory_order_relaxed);
    if (open == nullptr || buffer.is_idle()) return;
    if (buffer.is_receiving()) open->cancel(buffer.incoming());
    for (const auto& sending : buffer.sends()) open->give_up(*sending.request);
  }
  void sweep() {
    const auto idle = std::partition(busy.begin(), busy.end(),
                                     [](const auto& buffer) { return !buffer->is_idle(); });
    std::move(idle, busy.end(), std::back_inserter(free));
    busy.erase(idle, busy.end());
  }

  static constexpr std::size_t kMaxFree = 256;
};

Network::Network(Monitor& monitor, Options options)
    : address_(std::move(options.address)),
      buffer_pool_(std::make_shared<BufferPool>()),
      endpoint_(open_endpoint(*options.settings, address_)),
      control_(monitor, {.address = address_,
                         .ports = options.settings->ports,
                         .liveness_timeout = options.settings->liveness_timeout,
                         .self = std::move(options.self),
                         .on_notice = std::move(options.on_notice)}) {
  buffer_pool_->endpoint.store(endpoint_.get(), std::memory_order_relaxed);
}

Network::~Network() {
  close();
  buffer_pool_->endpoint.store(nullptr,
                               std::memory_order_relaxed);  // it ends with all that is posted
}

std::uint32_t Network::allocate_group_id() {
  const std::lock_guard lock(cells_mutex_);
  do {
    last_group_ = last_group_ % kMaxGroupId + 1;
  } while (cells_.contains(last_group_));
  cells_[last_group_];
  return last_group_;
}

void Network::release_group_id(std::uint32_t number) noexcept {
  const std::lock_guard lock(cells_mutex_);
  cells_.erase(number);
}

std::vector<std::shared_ptr<MessageBuffer>> Network::take_cells(std::uint32_t group_id) {
  progress();
  const std::lock_guard lock(cells_mutex_);
  sort_cells();
  post_cell_receives();
  const auto found = cells_.find(group_id);
  return found == cells_.end() ? std::vector<std::shared_ptr<MessageBuffer>>()
                               : std::exchange(found->second, {});
}

void Network::post_cell_receives() {
  while (posted_.size() < kPostedReceives) {
    auto buffer = acquire_buffer();
    Request& request = buffer->request_from(-1, 0);
    const std::uint64_t tag = tag_of(0, Traffic::point_to_point, 0);
    const std::uint64_t any_group = tag_of(kMaxGroupId, Traffic::collective, 0);
    if (!endpoint_->receive(Endpoint::kAnyone, tag, buffer->first(NetworkChannel::kMaxMessageBytes),
                            request, any_group))
      return;  // no room: the next look will find some
    posted_.push_back(std::move(buffer));
  }
}

/// Cells of groups that this process has left, and what is no cell, are dropped.
void Network::sort_cells() {
  std::erase_if(posted_, [&](const std::shared_ptr<MessageBuffer>& buffer) {
    if (!buffer->is_idle()) return false;
    const Request& request = buffer->incoming();
    CellAddress address;
    std::memcpy(&address, buffer->header(), sizeof address);
    if (request.error() != 0 || request.bytes() < MessageBuffer::kHeaderBytes) return true;
    if (const auto found = cells_.find(address.group_id); found != cells_.end())
      found->second.push_back(buffer);
    return true;
  });
}

void Network::drop_in_child() noexcept {
  buffer_pool_->forked.store(true, std::memory_order_relaxed);
}

std::shared_ptr<MessageBuffer> Network::acquire_buffer() {
  return {buffer_pool_->take().release(), [buffer_pool = buffer_pool_](MessageBuffer* buffer) {
            buffer_pool->give_back(std::unique_ptr<MessageBuffer>(buffer));
          }};
}

void Network::close() noexcept {
  const Deadline end = deadline_after(kLastWords);
  try {
    while (has_outstanding() && Clock::now() < end) endpoint_->progress();
  } catch (const Error&) {
    // Then it will not get better by waiting.
  }
  control_.close();
}

}  // namespace tccl::ofi
