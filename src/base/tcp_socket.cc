#include "base/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>

#include "base/format.h"
#include "base/system_error.h"
#include "tccl/error.h"

namespace tccl {
namespace {

using Results = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// None, and the reason if it is wanted, if there are none.
Results look_up(const std::string& host, std::uint16_t port, int flags, int* problem) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* first = nullptr;
  const int result = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first);
  if (problem != nullptr) *problem = result;
  return {result == 0 ? first : nullptr, &::freeaddrinfo};
}

Fd new_socket(int family) noexcept {
  return Fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
}

void set_option(int socket, int level, int option, int value) noexcept {
  ::setsockopt(socket, level, option, &value, sizeof value);
}

/// An invalid one; errno stays as it is.
Fd closed(Fd fd) noexcept {
  const int problem = errno;
  fd.reset();
  errno = problem;
  return fd;
}

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address, socklen_t length)
    : length_(std::min<socklen_t>(length, sizeof storage_)) {
  std::memcpy(&storage_, address, length_);
}

SocketAddress SocketAddress::parse(const std::string& text, std::uint16_t port) {
  int problem = 0;
  const Results results = look_up(text, port, AI_NUMERICHOST, &problem);
  if (!results)
    throw Error(Errc::invalid_argument,
                formatted("\"{}\" is not an address: {}", text, gai_strerror(problem)));
  return {results->ai_addr, results->ai_addrlen};
}

std::vector<SocketAddress> SocketAddress::resolve(const std::string& host, std::uint16_t port,
                                                  int* problem) {
  const Results results = look_up(host, port, 0, problem);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* a = results.get(); a != nullptr; a = a->ai_next)
    addresses.emplace_back(a->ai_addr, a->ai_addrlen);
  return addresses;
}

SocketAddress SocketAddress::local_end_of(int socket) {
  SocketAddress address;
  address.length_ = sizeof address.storage_;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage_), &address.length_);
  return address;
}

SocketAddress SocketAddress::remote_end_of(int socket) {
  SocketAddress address;
  address.length_ = sizeof address.storage_;
  ::getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage_), &address.length_);
  return address;
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST] = {};
  const int problem = ::getnameinfo(get(), length_, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return problem == 0 ? text : "unknown";
}

std::uint16_t SocketAddress::port() const {
  // The port lies at the same place for both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

std::string SocketAddress::text() const {
  return family() == AF_INET6 ? formatted("[{}]:{}", host(), port())
                              : formatted("{}:{}", host(), port());
}

Fd try_to_listen(const SocketAddress& address) noexcept {
  Fd fd = new_socket(address.family());
  if (!fd) return fd;
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);  // connections of an earlier job may linger
  const bool good =
      ::bind(fd.get(), address.get(), address.length()) == 0 && ::listen(fd.get(), SOMAXCONN) == 0;
  return good ? std::move(fd) : closed(std::move(fd));
}

Fd listen_within(const std::string& address, PortRange ports) {
  for (unsigned port = ports.first; port <= ports.last; ++port) {
    Fd fd = try_to_listen(SocketAddress::parse(address, static_cast<std::uint16_t>(port)));
    if (fd) return fd;
    if (errno != EADDRINUSE && errno != EACCES)
      throw_system_error(formatted("cannot listen on {}, port {}", address, port));
  }
  throw Error(Errc::system,
              formatted("CCL_PORT_RANGE: no port from {} to {} is free on {}; each process needs "
                        "two of its own",
                        ports.first, ports.last, address));
}

Fd start_connecting(const SocketAddress& to,
                    std::optional<std::chrono::milliseconds> liveness_timeout) noexcept {
  Fd fd = new_socket(to.family());
  if (!fd) return fd;
  if (liveness_timeout) prepare_connection(fd.get(), *liveness_timeout);
  const bool good = ::connect(fd.get(), to.get(), to.length()) == 0 || errno == EINPROGRESS;
  return good ? std::move(fd) : closed(std::move(fd));
}

void prepare_connection(int socket, std::chrono::milliseconds liveness_timeout) noexcept {
  constexpr std::int64_t kLongest = std::numeric_limits<int>::max();
  const auto timeout = std::clamp<std::int64_t>(liveness_timeout.count(), 1, kLongest);
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(timeout));
  // Where nothing is under way, probes see to it that the timeout counts all the same.
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
}

}  // namespace tccl
