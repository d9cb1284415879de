// Keeps strangers away from a TCP listener that another library has opened: libfabric accepts every
// connection, and keeps those that say nothing.
//
//   ListenerGuard guard(address_that_the_library_listens_on);
//   guard.admit(SocketAddress::parse("10.0.0.2", 0));   // a host of the job
//
// The kernel drops connection requests from hosts that were not admitted (a socket filter), and
// hands over a connection only once its first bytes have arrived (TCP_DEFER_ACCEPT), so that silent
// ones of admitted hosts take no descriptor for the first minutes.
// Thread safety: none.
#pragma once

#include <string>
#include <vector>

#include "base/tcp_socket.h"

namespace tccl {

class ListenerGuard {
 public:
  /// Guards nothing.
  ListenerGuard() = default;
  /// Finds the listener of this process with this address, which stays open as long as the guard is
  /// used, and admits no host yet. Guards nothing if there is none: this is logged.
  explicit ListenerGuard(const SocketAddress& listener);

  /// From now on this host may connect, whatever its port. If the kernel takes no filter for that
  /// many hosts, all hosts may: this is logged. An address of another family than the listener's
  /// has no effect: no connection comes from it.
  void admit(const SocketAddress& host);
  /// Whether hosts that were not admitted are kept out.
  [[nodiscard]] bool is_filtering() const noexcept { return is_filtering_; }

 private:
  void update_filter();
  void warn_open(const std::string& reason);

  int listener_ = -1;  // the other library's
  SocketAddress address_;
  bool warned_ = false;
  bool is_filtering_ = false;
  std::vector<SocketAddress> admitted_;
};

}  // namespace tccl
