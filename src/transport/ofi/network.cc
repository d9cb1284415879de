#include "transport/ofi/network.h"

#include <algorithm>

#include "base/format.h"
#include "tccl/error.h"

namespace tccl::ofi {
namespace {

/// What has not left after this time goes to somebody who no longer takes it.
constexpr std::chrono::milliseconds kLastWords{2000};

/// The first free port of the range; libfabric takes a fixed one, or any.
std::unique_ptr<Endpoint> open_endpoint(const Settings& settings, const std::string& address) {
  const PortRange ports = settings.ports;
  for (std::uint32_t port = ports.first; port <= ports.last; ++port) {
    try {
      return std::make_unique<Endpoint>(
          Endpoint::Options{settings.provider, address, static_cast<std::uint16_t>(port)});
    } catch (const Error& error) {
      if (port == ports.last) throw;
    }
  }
  throw Error(Errc::internal, "an empty range of ports");
}

}  // namespace

Request& Parcel::request_to(int rank) {
  Request& request = new_request();
  sendings_.push_back({rank, &request});
  return request;
}

Request& Parcel::request_from(int rank, std::uint64_t number) {
  from_ = rank;
  number_ = number;
  return new_request();
}

Request& Parcel::new_request() {
  if (used_ == requests_.size()) requests_.emplace_back();
  return requests_[used_++];
}

bool Parcel::is_idle() const {
  for (std::size_t i = 0; i < used_; ++i)
    if (!requests_[i].done()) return false;
  return true;
}

/// Parcels that nobody holds: those that are free, and those that the network still uses.
struct Network::Depot {
  std::mutex mutex;
  std::vector<std::unique_ptr<Parcel>> free;
  std::vector<std::unique_ptr<Parcel>> busy;

  std::unique_ptr<Parcel> take() {
    const std::lock_guard lock(mutex);
    if (free.empty()) sweep();
    if (free.empty()) return std::make_unique<Parcel>();
    auto parcel = std::move(free.back());
    free.pop_back();
    parcel->reset();
    return parcel;
  }
  void give_back(std::unique_ptr<Parcel> parcel) {
    const std::lock_guard lock(mutex);
    (parcel->is_idle() ? free : busy).push_back(std::move(parcel));
    if (free.size() > kMostFree) free.pop_back();
  }
  void sweep() {
    const auto idle = std::partition(busy.begin(), busy.end(),
                                     [](const auto& parcel) { return !parcel->is_idle(); });
    std::move(idle, busy.end(), std::back_inserter(free));
    busy.erase(idle, busy.end());
  }

  static constexpr std::size_t kMostFree = 256;
};

Network::Network(Monitor& monitor, Options options)
    : address_(std::move(options.address)),
      depot_(std::make_shared<Depot>()),
      endpoint_(open_endpoint(*options.settings, address_)),
      control_(monitor, {.address = address_,
                         .ports = options.settings->ports,
                         .liveness_timeout = options.settings->liveness_timeout,
                         .self = std::move(options.self),
                         .on_notice = std::move(options.on_notice)}) {}

Network::~Network() { close(); }

std::uint32_t Network::new_group_number() noexcept {
  return groups_.fetch_add(1, std::memory_order_relaxed) + 1;
}

std::shared_ptr<Parcel> Network::take_parcel() {
  return {depot_->take().release(),
          [depot = depot_](Parcel* parcel) { depot->give_back(std::unique_ptr<Parcel>(parcel)); }};
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
