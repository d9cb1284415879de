// A libfabric endpoint (FI_EP_RDM) for tagged messages to and from other processes.
//
//   Request request;
//   while (!endpoint.send(peer, tag, data, request)) endpoint.progress();
//   while (!request.done()) endpoint.progress();
//
// libfabric makes no progress by itself: some thread must call progress() while requests are
// in flight. It reports neither dead peers nor broken links, and it may write to the memory of a
// receive until the request is done or the endpoint is closed, even after cancel(). The callers
// handle both: see health/ and MessageBuffer.
// Thread safety: every method may be called from any thread.
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
#include "base/listener_guard.h"
#include "base/wait.h"

namespace tccl::ofi {

/// A send or receive in flight. The request and the message's memory must exist until done(), or
/// until the endpoint is closed.
class Request {
 public:
  [[nodiscard]] bool done() const noexcept {
    return done_.load(std::memory_order_acquire);  // pairs with Endpoint::complete()
  }
  /// After done(): 0 or an errno; ECANCELED after cancel().
  [[nodiscard]] int error() const noexcept { return error_; }
  /// After done(), of a receive: length of the message.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  friend class Endpoint;
  fi_context2 fi_context_{};  // libfabric's; first, so that it has the request's address
  int error_ = 0;
  bool is_counted_ = false;  // in Endpoint::in_flight_sends()
  std::size_t bytes_ = 0;
  std::atomic<bool> done_{true};  // Endpoint::complete() releases, done() acquires
};

class Endpoint {
 public:
  struct Options {
    std::string provider;    // as CCL_ATL_PROVIDER names it; empty: a preferred one, else tcp
    std::string address;     // of the network interface
    std::uint16_t port = 0;  // 0: any
    std::vector<std::string> preferred_providers{};
    std::string libfabric_path{};  // empty: the system's
  };
  using RawAddress = std::vector<std::byte>;  // as fi_getname() returns it
  static constexpr fi_addr_t kAnySource = FI_ADDR_UNSPEC;

  /// Throws Error{system}.
  explicit Endpoint(const Options& options);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  [[nodiscard]] const RawAddress& address() const noexcept { return address_; }
  [[nodiscard]] const std::string& provider() const noexcept { return provider_; }
  /// "10.0.0.1:4711", or the provider's own form; for messages.
  [[nodiscard]] std::string address_text() const;
  /// The same of a peer.
  [[nodiscard]] std::string address_text(fi_addr_t peer);
  /// The hosts that have connected to this endpoint, if the provider uses TCP; for messages.
  [[nodiscard]] std::vector<std::string> connected_hosts() const;

  /// The connection is made when the first message is sent.
  fi_addr_t add_peer(const RawAddress& address);

  /// Returns false if the queue is full (FI_EAGAIN): call progress() and try again.
  bool send(fi_addr_t peer, std::uint64_t tag, std::span<const std::byte> data, Request& request);
  /// `ignored_tag_bits`: tag bits that need not match.
  bool receive(fi_addr_t peer, std::uint64_t tag, std::span<std::byte> data, Request& request,
               std::uint64_t ignored_tag_bits = 0);
  /// Requests cancellation; the request is done when progress() has completed it.
  void cancel(Request& request) noexcept;

  /// The send goes on, but no longer counts in in_flight_sends(): nobody needs it any more.
  void stop_counting(Request& request) noexcept;
  /// Number of sends that libfabric has accepted and not completed. From any thread, for decisions
  /// only: relaxed.
  [[nodiscard]] std::size_t in_flight_sends() const noexcept {
    return in_flight_sends_.load(std::memory_order_relaxed);
  }

  /// Makes libfabric progress and completes requests. Returns how many.
  std::size_t progress();
  /// The same, unless another thread is in progress(): that one completes all threads' requests.
  std::size_t try_progress();
  /// Sleeps until the completion queue may have entries, at most for `timeout`. Providers without
  /// a wait object sleep for a short time only.
  void sleep(std::chrono::milliseconds timeout);

 private:
  struct Close {
    template <class Object>
    void operator()(Object* object) const noexcept {
      ::fi_close(&object->fid);
    }
  };
  template <class Object>
  using Owned = std::unique_ptr<Object, Close>;

  bool open_preferred(const Options& options);
  void open(fi_info& info);
  void close() noexcept;
  static void prepare(Request& request);
  bool start(Request& request, ssize_t result);
  void complete(void* fi_context, std::size_t bytes, int error);
  std::size_t progress_locked();
  std::size_t complete_failed();
  void uncount(Request& request) noexcept;

  std::mutex mutex_;                             // guards the libfabric objects: FI_THREAD_DOMAIN
  std::atomic<std::size_t> in_flight_sends_{0};  // relaxed: a counter
  std::string provider_;
  RawAddress address_;
  ListenerGuard guard_;       // of the provider tcp
  Owned<fid_fabric> fabric_;  // each object uses those before it
  Owned<fid_domain> domain_;
  Owned<fid_av> addresses_;
  Owned<fid_cq> completions_;
  Owned<fid_ep> endpoint_;
  int wait_fd_ = -1;  // of the completion queue; -1: the provider has none
};

/// Sleeper of base/wait.h on the network: sleep() returns at once if completions arrived before.
class EndpointSleeper {
 public:
  explicit EndpointSleeper(Endpoint& endpoint, std::chrono::milliseconds interval = kSleepInterval)
      : endpoint_(endpoint), interval_(interval) {}
  struct Token {};
  [[nodiscard]] Token prepare() const { return {}; }  // Endpoint::sleep() calls fi_trywait()
  void sleep(Token) const { endpoint_.sleep(interval_); }

 private:
  Endpoint& endpoint_;
  std::chrono::milliseconds interval_;
};

}  // namespace tccl::ofi
