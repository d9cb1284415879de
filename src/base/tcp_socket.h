// Addresses and non-blocking TCP sockets.
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "config/settings.h"

namespace tccl {

/// An IPv4 or IPv6 address with a port.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t length);
  /// From numbers such as "10.0.0.1" or "fd00::2"; throws Error{invalid_argument}.
  static SocketAddress parse(const std::string& text, std::uint16_t port);
  /// Of a name or of numbers; empty if it cannot be resolved. `problem`: as from getaddrinfo().
  static std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port,
                                            int* problem = nullptr);
  static SocketAddress local_end_of(int socket);
  static SocketAddress remote_end_of(int socket);

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t length() const { return length_; }
  [[nodiscard]] int family() const { return storage_.ss_family; }
  [[nodiscard]] std::string host() const;  // in numbers
  [[nodiscard]] std::uint16_t port() const;
  /// "10.0.0.1:4711" or "[fd00::2]:4711"
  [[nodiscard]] std::string text() const;

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

/// An invalid Fd, and errno, if the port is taken.
Fd try_to_listen(const SocketAddress& address) noexcept;

/// Listens on a free port of the range; throws Error{system} if there is none.
Fd listen_within(const std::string& address, PortRange ports);

/// A connection that is being made: writable or in error once that is settled. An invalid Fd, and
/// errno, if it has failed at once. With a timeout it is prepared as below.
Fd start_connecting(
    const SocketAddress& to,
    std::optional<std::chrono::milliseconds> liveness_timeout = std::nullopt) noexcept;

/// For connections with small messages whose other end may vanish: nothing is held back, and what
/// is not acknowledged within the timeout ends the connection with ETIMEDOUT.
void prepare_connection(int socket, std::chrono::milliseconds liveness_timeout) noexcept;

}  // namespace tccl
