// This process's end of the network: tagged messages to and from other processes, by libfabric.
//
// libfabric moves nothing by itself: somebody has to call progress() while messages are under way.
// It reports neither dead peers nor cut cables, and it may write to a receive's memory until the
// request is done or the endpoint closed, cancelled or not. Both are for its users to deal with.
// Thread-safe.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"

namespace tccl::ofi {

/// A message under way. It and the memory of the message stay until done() or the endpoint's end.
class Request {
 public:
  [[nodiscard]] bool done() const noexcept {
    return done_.load(std::memory_order_acquire);  // pairs with Endpoint::progress()
  }
  /// Once it is done: 0, or why it failed (an errno; ECANCELED after cancel()).
  [[nodiscard]] int error() const noexcept { return error_; }
  /// Once a receive is done: how long the message was.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  friend class Endpoint;
  fi_context2 context_{};  // libfabric's; first, so that its address is the request's
  int error_ = 0;
  bool counts_ = false;  // among Endpoint::sending()
  std::size_t bytes_ = 0;
  std::atomic<bool> done_{true};
};

class Endpoint {
 public:
  struct Options {
    std::string provider;    // as CCL_ATL_PROVIDER names it; empty: tcp
    std::string address;     // of the interface to use
    std::uint16_t port = 0;  // 0: any
  };
  using Address = std::vector<std::byte>;  // what another process needs to know
  using Peer = fi_addr_t;
  static constexpr Peer kAnyone = FI_ADDR_UNSPEC;  // to receive from

  /// Throws Error{system}.
  explicit Endpoint(const Options& options);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  [[nodiscard]] const Address& address() const noexcept { return address_; }
  [[nodiscard]] const std::string& provider() const noexcept { return provider_; }
  /// The longest message.
  [[nodiscard]] std::size_t max_bytes() const noexcept { return max_bytes_; }

  /// Connects when the first message is sent.
  Peer add_peer(const Address& address);

  /// False if there is no room at the moment: call progress() and try again.
  bool send(Peer peer, std::uint64_t tag, std::span<const std::byte> data, Request& request);
  /// Bits of the tag that are set in `any_of` may have any value.
  bool receive(Peer peer, std::uint64_t tag, std::span<std::byte> data, Request& request,
               std::uint64_t any_of = 0);
  /// Asks for it; the request is done when progress() says so.
  void cancel(Request& request) noexcept;

  /// A message that need not arrive any more no longer counts as under way.
  void give_up(Request& request) noexcept;
  /// Messages that have not left yet.
  [[nodiscard]] std::size_t sending() const noexcept {
    return sending_.load(std::memory_order_relaxed);
  }

  /// Moves data, and completes requests. Returns how many it has completed.
  std::size_t progress();
  /// The same, unless another thread is at it: then it completes this one's requests, too.
  std::size_t try_progress();
  /// Until something may have happened, or the time is over; shorter where it cannot be woken.
  void sleep(std::chrono::milliseconds at_most);

 private:
  struct Close {
    template <class Object>
    void operator()(Object* object) const noexcept {
      ::fi_close(&object->fid);
    }
  };
  template <class Object>
  using Owned = std::unique_ptr<Object, Close>;

  void open(fi_info& info);
  static void prepare(Request& request);
  bool start(Request& request, ssize_t result);
  void complete(void* context, std::size_t bytes, int error);
  std::size_t progress_locked();
  std::size_t take_error();
  void count_out(Request& request) noexcept;

  std::mutex mutex_;  // for all that libfabric makes
  std::atomic<std::size_t> sending_{0};
  std::string provider_;
  std::size_t max_bytes_ = 0;
  Address address_;
  Owned<fid_fabric> fabric_;  // each of them needs those before it
  Owned<fid_domain> domain_;
  Owned<fid_av> addresses_;
  Owned<fid_cq> completions_;
  Owned<fid_ep> endpoint_;
  int wait_fd_ = -1;
};

}  // namespace tccl::ofi
