#include "base/tcp_socket.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <set>

#include "base/format.h"
#include "base/system_error.h"
#include "tccl/error.h"

namespace tccl {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// Empty on failure, with the code of getaddrinfo() in `gai_error` unless that is null.
AddressList look_up(const std::string& host, std::uint16_t port, int flags, int* gai_error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* first = nullptr;
  const int result = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first);
  if (gai_error != nullptr) *gai_error = result;
  return {result == 0 ? first : nullptr, &::freeaddrinfo};
}

Fd new_socket(int family) noexcept {
  return Fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
}

void set_option(int socket, int level, int option, int value) noexcept {
  ::setsockopt(socket, level, option, &value, sizeof value);
}

/// Closes the socket, keeps errno and returns an invalid Fd.
Fd close_keeping_errno(Fd fd) noexcept {
  const int error = errno;
  fd.reset();
  errno = error;
  return fd;
}

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address, socklen_t length)
    : length_(std::min<socklen_t>(length, sizeof storage_)) {
  std::memcpy(&storage_, address, length_);
}

SocketAddress SocketAddress::parse(const std::string& text, std::uint16_t port) {
  int gai_error = 0;
  const AddressList results = look_up(text, port, AI_NUMERICHOST, &gai_error);
  if (!results)
    throw Error(Errc::invalid_argument,
                formatted("\"{}\" is not an IP address: {}", text, gai_strerror(gai_error)));
  return {results->ai_addr, results->ai_addrlen};
}

std::vector<SocketAddress> SocketAddress::resolve(const std::string& host, std::uint16_t port,
                                                  int* gai_error) {
  const AddressList results = look_up(host, port, 0, gai_error);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* a = results.get(); a != nullptr; a = a->ai_next)
    addresses.emplace_back(a->ai_addr, a->ai_addrlen);
  return addresses;
}

SocketAddress SocketAddress::of_local_end(int socket) {
  SocketAddress address;
  address.length_ = sizeof address.storage_;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage_), &address.length_);
  return address;
}

SocketAddress SocketAddress::of_remote_end(int socket) {
  SocketAddress address;
  address.length_ = sizeof address.storage_;
  ::getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage_), &address.length_);
  return address;
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST] = {};
  const int result = ::getnameinfo(get(), length_, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return result == 0 ? text : "unknown";
}

std::uint16_t SocketAddress::port() const {
  // sockaddr_in and sockaddr_in6 have the port at the same offset.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

std::string SocketAddress::text() const {
  return family() == AF_INET6 ? formatted("[{}]:{}", host(), port())
                              : formatted("{}:{}", host(), port());
}

Fd try_listen(const SocketAddress& address) noexcept {
  Fd fd = new_socket(address.family());
  if (!fd) return fd;
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);  // an earlier job may have left TIME_WAIT
  const bool ok =
      ::bind(fd.get(), address.get(), address.length()) == 0 && ::listen(fd.get(), SOMAXCONN) == 0;
  return ok ? std::move(fd) : close_keeping_errno(std::move(fd));
}

Fd listen_in_range(const std::string& address, PortRange ports) {
  for (unsigned port = ports.first; port <= ports.last; ++port) {
    Fd fd = try_listen(SocketAddress::parse(address, static_cast<std::uint16_t>(port)));
    if (fd) return fd;
    if (errno != EADDRINUSE && errno != EACCES)
      throw_system_error(formatted("cannot listen on address {}, port {}", address, port));
  }
  throw Error(Errc::system, no_free_port_text(address, ports));
}

std::string no_free_port_text(const std::string& address, PortRange ports) {
  return formatted(
      "CCL_PORT_RANGE: no port from {} to {} is free on {}; each rank of a host needs two",
      ports.first, ports.last, address);
}

Fd start_connecting(const SocketAddress& to,
                    std::optional<std::chrono::milliseconds> liveness_timeout) noexcept {
  Fd fd = new_socket(to.family());
  if (!fd) return fd;
  if (liveness_timeout) set_liveness_options(fd.get(), *liveness_timeout);
  const bool ok = ::connect(fd.get(), to.get(), to.length()) == 0 || errno == EINPROGRESS;
  return ok ? std::move(fd) : close_keeping_errno(std::move(fd));
}

namespace {

/// Calls `visit(fd, local address)` for each TCP socket of this process, until it returns true.
template <class Visit>
void visit_tcp_sockets(const Visit& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> descriptors(::opendir("/proc/self/fd"), ::closedir);
  while (const dirent* entry = descriptors ? ::readdir(descriptors.get()) : nullptr) {
    const int fd = std::atoi(entry->d_name);  // 0 for "." and ".."
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) continue;
    const SocketAddress local(reinterpret_cast<const sockaddr*>(&address), length);
    const bool is_tcp = local.family() == AF_INET || local.family() == AF_INET6;
    if (is_tcp && visit(fd, local)) return;
  }
}

bool is_listening(int socket) noexcept {
  int listens = 0;
  socklen_t length = sizeof listens;
  return ::getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0;
}

}  // namespace

void close_on_exec(std::uint16_t local_port) noexcept {
  visit_tcp_sockets([&](int fd, const SocketAddress& local) {
    if (local.port() == local_port) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    return false;
  });
}

int find_listener(const SocketAddress& address) noexcept {
  int found = -1;
  visit_tcp_sockets([&](int fd, const SocketAddress& local) {
    const bool matches = local.port() == address.port() && local.host() == address.host();
    if (matches && is_listening(fd)) found = fd;
    return found >= 0;
  });
  return found;
}

std::vector<std::string> hosts_connected_to(std::uint16_t local_port) {
  std::set<std::string> hosts;
  visit_tcp_sockets([&](int fd, const SocketAddress& local) {
    if (local.port() == local_port && !is_listening(fd))
      hosts.insert(SocketAddress::of_remote_end(fd).host());
    return false;
  });
  return {hosts.begin(), hosts.end()};
}

void set_liveness_options(int socket, std::chrono::milliseconds liveness_timeout) noexcept {
  constexpr std::int64_t kMax = std::numeric_limits<int>::max();
  const auto timeout = std::clamp<std::int64_t>(liveness_timeout.count(), 1, kMax);
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(timeout));
  // TCP_USER_TIMEOUT covers unacknowledged data only; on an idle connection, keep-alive probes are
  // that data.
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
}

}  // namespace tccl
