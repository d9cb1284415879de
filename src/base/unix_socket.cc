#include "base/unix_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "base/poll.h"
#include "base/system_error.h"
#include "tccl/error.h"

namespace tccl {
namespace {

constexpr std::size_t kMaxFdsPerPacket = 4;

struct Address {
  sockaddr_un un{};
  socklen_t length = 0;

  explicit Address(const std::string& name) {
    un.sun_family = AF_UNIX;
    std::memcpy(un.sun_path + 1, name.data(),
                name.size());  // a leading NUL makes the name abstract
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&un); }
};

Fd new_socket() {
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) throw_system_error("socket(AF_UNIX)");
  return fd;
}

ucred credentials_of_peer(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
    throw_system_error("getsockopt(SO_PEERCRED)");
  return peer;
}

std::vector<Fd> take_descriptors(msghdr& message) {
  std::vector<Fd> fds;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

/// The kernel has dropped descriptors of a packet: this process may not open more, or a policy such
/// as SELinux forbids to pass them.
[[noreturn]] void throw_descriptors_lost(int socket) {
  const Fd one_more(::fcntl(socket, F_DUPFD_CLOEXEC, 0));
  if (!one_more) throw_system_error("cannot receive a file descriptor");
  throw Error(Errc::system,
              "the kernel did not deliver a file descriptor of another rank (a security policy "
              "forbids it, or none was free)");
}

/// If the peer closed with unread packets in its queue, the first receive fails with ECONNRESET,
/// once. The packets that the peer sent before are still in our queue.
template <class Receive>
ssize_t receive_despite_reset(const Receive& receive) {
  const ssize_t got = receive();
  return got < 0 && errno == ECONNRESET ? receive() : got;
}

}  // namespace

Fd listen_on(const std::string& abstract_name) {
  Fd fd = new_socket();
  const Address address(abstract_name);
  if (::bind(fd.get(), address.get(), address.length) != 0) {
    if (errno == EADDRINUSE) return {};
    throw_system_error("bind(abstract socket)");
  }
  if (::listen(fd.get(), SOMAXCONN) != 0) throw_system_error("listen(abstract socket)");
  return fd;
}

Fd connect_to(const std::string& abstract_name) {
  Fd fd = new_socket();
  const Address address(abstract_name);
  if (::connect(fd.get(), address.get(), address.length) == 0) return fd;
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return {};
  throw_system_error("connect(abstract socket)");
}

bool belongs_to_this_user_or_root(int socket) {
  const uid_t user = credentials_of_peer(socket).uid;
  return user == ::geteuid() || user == 0;
}

std::string peer_text(int socket) {
  const ucred peer = credentials_of_peer(socket);
  return formatted("user {}, pid {}", peer.uid, peer.pid);
}

std::size_t next_packet_bytes(int socket) {
  char probe[1];
  const ssize_t length = receive_despite_reset(
      [&] { return ::recv(socket, probe, sizeof probe, MSG_PEEK | MSG_TRUNC); });
  return length < 0 ? 0 : static_cast<std::size_t>(length);
}

void discard_packet(int socket) noexcept {
  char byte = 0;
  static_cast<void>(::recv(socket, &byte, sizeof byte, MSG_DONTWAIT));
}

bool wait_readable(int socket, Deadline deadline) {
  return wait_for_event(socket, POLLIN, deadline);
}

void send_packet(int socket, const void* data, std::size_t bytes, Deadline deadline,
                 std::span<const int> fds) {
  iovec part{.iov_base = const_cast<void*>(data), .iov_len = bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFdsPerPacket * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  }
  while (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) != static_cast<ssize_t>(bytes)) {
    if (errno == EPIPE || errno == ECONNRESET)
      throw Error(Errc::peer_lost, "Connection closed by peer");
    if (errno != EAGAIN && errno != EINTR) throw_system_error("sendmsg");
    if (!wait_for_event(socket, POLLOUT, deadline))
      throw Error(Errc::timeout, "the peer did not answer before the timeout");
  }
}

std::vector<Fd> receive_packet(int socket, void* data, std::size_t bytes, Deadline deadline) {
  if (!wait_readable(socket, deadline))
    throw Error(Errc::timeout, "the peer did not answer before the timeout");
  iovec part{.iov_base = data, .iov_len = bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFdsPerPacket * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got =
      receive_despite_reset([&] { return ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC); });
  std::vector<Fd> fds = take_descriptors(message);
  if (got == 0) throw Error(Errc::peer_lost, "Connection closed by peer");
  if ((message.msg_flags & MSG_CTRUNC) != 0) throw_descriptors_lost(socket);
  if (got != static_cast<ssize_t>(bytes) || (message.msg_flags & MSG_TRUNC) != 0)
    throw Error(Errc::mismatch,
                formatted("received a packet of another length than the {} bytes that this version "
                          "of the library expects",
                          bytes));
  return fds;
}

}  // namespace tccl
