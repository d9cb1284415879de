#include "transport/ofi/network.h"

#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "tccl/error.h"

namespace tccl::ofi {
namespace {

/// Upper bound for flushing sends in flight in close(). A live peer receives them in milliseconds,
/// so after this time the receiver has died or is stopped.
constexpr std::chrono::milliseconds kEndpointFlushTimeout{2000};

/// Receives posted for point-to-point cells: enough that cells rarely arrive unexpected.
constexpr std::size_t kPostedReceives = 32;

/// Opens the endpoint on the first free port of the range: libfabric accepts one port, or any.
std::unique_ptr<Endpoint> open_endpoint(const Settings& settings, const std::string& address) {
  const PortRange ports = settings.ports;
  std::string problem;
  for (std::uint32_t port = ports.first; port <= ports.last; ++port) {
    try {
      return std::make_unique<Endpoint>(
          Endpoint::Options{settings.provider, address, static_cast<std::uint16_t>(port),
                            settings.preferred_providers, settings.libfabric_path});
    } catch (const Error& error) {
      if (ports.last == 0) throw;
      problem = error.what();
    }
  }
  throw Error(Errc::system, formatted("{} ({})", no_free_port_text(address, ports), problem));
}

}  // namespace

Network::Network(Monitor& monitor, Options options)
    : address_(std::move(options.address)),
      buffer_pool_(std::make_shared<BufferPool>()),
      endpoint_(open_endpoint(*options.settings, address_)),
      control_(monitor, {.address = address_,
                         .ports = options.settings->ports,
                         .liveness_timeout = options.settings->liveness_timeout,
                         .self = std::move(options.self),
                         .on_notice = std::move(options.on_notice)}) {
  buffer_pool_->set_endpoint(endpoint_.get());
}

Network::~Network() {
  close();
  buffer_pool_->set_endpoint(nullptr);  // closing the endpoint ends all its requests
}

std::uint32_t Network::allocate_group_tag(std::uint64_t group_uid) {
  const std::lock_guard lock(cells_mutex_);
  do {
    last_group_tag_ = last_group_tag_ % kMaxGroupTag + 1;
  } while (groups_.contains(last_group_tag_));
  groups_[last_group_tag_].uid = group_uid;
  highest_group_tag_ = std::max(highest_group_tag_, last_group_tag_);
  return last_group_tag_;
}

void Network::release_group_tag(std::uint32_t group_tag) noexcept {
  const std::lock_guard lock(cells_mutex_);
  groups_.erase(group_tag);
}

std::vector<std::shared_ptr<MessageBuffer>> Network::take_cells(std::uint32_t group_tag) {
  progress();
  const std::lock_guard lock(cells_mutex_);
  sort_cells();
  post_cell_receives();
  const auto found = groups_.find(group_tag);
  return found == groups_.end() ? std::vector<std::shared_ptr<MessageBuffer>>()
                                : std::exchange(found->second.cells, {});
}

void Network::post_cell_receives() {
  while (posted_.size() < kPostedReceives) {
    auto buffer = acquire_buffer();
    Request& request = buffer->request_from(-1, 0);
    const std::uint64_t tag = tag_of(0, TrafficKind::point_to_point, 0);
    const std::uint64_t any_group = tag_of(kMaxGroupTag, TrafficKind::collective, 0);
    if (!endpoint_->receive(Endpoint::kAnySource, tag,
                            buffer->first(NetworkChannel::kMaxMessageBytes), request, any_group))
      return;  // the queue is full: the next call posts the rest
    posted_.push_back(std::move(buffer));
  }
}

/// Distributes arrived cells to their groups.
void Network::sort_cells() {
  std::erase_if(posted_, [&](const std::shared_ptr<MessageBuffer>& buffer) {
    if (!buffer->is_idle()) return false;
    keep_cell(buffer);
    return true;
  });
}

/// For its group. Drops those of groups that this process has departed from, and messages that are
/// no cells.
void Network::keep_cell(const std::shared_ptr<MessageBuffer>& buffer) {
  const Request& request = buffer->incoming();
  if (request.error() == FI_ETRUNC) return warn_dropped("it is too long");
  // Other errors: cancelled, or the connection broke while the message arrived (the sender died).
  if (request.error() != 0) return;
  if (request.bytes() < MessageBuffer::kHeaderBytes)
    return warn_dropped("it is too short for a header");
  CellAddress address;
  std::memcpy(&address, buffer->header(), sizeof address);
  const auto found = groups_.find(address.group_tag);
  if (found == groups_.end()) {
    if (address.group_tag > highest_group_tag_) warn_dropped("it names no group");
    return;
  }
  if (address.group_uid != found->second.uid) return warn_dropped("it names another group");
  found->second.cells.push_back(buffer);
}

void Network::warn_dropped(const std::string& reason) noexcept {
  if (warned_.exchange(true, std::memory_order_relaxed)) return;
  std::string hosts;
  for (const std::string& host : endpoint_->connected_hosts())
    hosts += (hosts.empty() ? "; hosts connected there: " : ", ") + host;
  log_warning(formatted("dropped a message that no rank sent, on the data port {}: {}{}",
                        endpoint_->address_text(), reason, hosts));
}

void Network::close_in_child() noexcept { buffer_pool_->close_in_child(); }

std::shared_ptr<MessageBuffer> Network::acquire_buffer() {
  return {buffer_pool_->acquire().release(), [buffer_pool = buffer_pool_](MessageBuffer* buffer) {
            buffer_pool->release(std::unique_ptr<MessageBuffer>(buffer));
          }};
}

void Network::close() noexcept {
  const Deadline deadline = deadline_after(kEndpointFlushTimeout);
  try {
    while (has_sends_in_flight() && Clock::now() < deadline) endpoint_->progress();
  } catch (const Error&) {
    // The network has failed: nothing more will be sent.
  }
  control_.close();
}

}  // namespace tccl::ofi
