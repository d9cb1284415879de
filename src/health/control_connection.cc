#include "health/control_connection.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace tccl::control {
namespace {

using ProcessState = RemoteProcess::State;

bool is_network_failure(int error) {
  return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH ||
         error == EHOSTDOWN || error == ENETDOWN;
}

ProcessState state_after_break(int error) {
  return is_network_failure(error) ? ProcessState::unreachable : ProcessState::died;
}

}  // namespace

RemoteProcess::State state_after_failed_connect(int error) noexcept {
  return error == ECONNREFUSED || error == ECONNRESET ? ProcessState::ended
                                                      : ProcessState::unreachable;
}

bool is_local_shortage(int error) noexcept {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS ||
         error == EADDRNOTAVAIL || error == EAGAIN;
}

std::uint32_t Connection::wanted_events() const noexcept {
  if (stage() == Handshake::Stage::connecting) return EPOLLOUT;
  return has_unsent() ? EPOLLIN | EPOLLOUT : EPOLLIN;
}

bool Connection::finish_connecting() {
  socklen_t length = sizeof socket_error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &socket_error, &length);
  if (socket_error != 0)
    throw ConnectionClosed{state_after_failed_connect(socket_error), std::strerror(socket_error)};
  sockaddr_storage unused;
  length = sizeof unused;
  return ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&unused), &length) == 0;
}

void Connection::send_outbox() noexcept {
  while (has_unsent()) {
    const ssize_t count =
        ::send(socket.get(), outbox.data() + sent, outbox.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && is_local_shortage(errno)) return;  // the send buffer is full
    if (count < 0) {
      // Bytes that the peer sent before may still have to be read: receive_some() reports the error
      // after them.
      if (socket_error == 0) socket_error = errno;
      break;
    }
    sent += static_cast<std::size_t>(count);
  }
  outbox.clear();
  sent = 0;
}

bool Connection::receive_some() {
  char buffer[4096];
  ssize_t count = 0;
  do {
    count = ::recv(socket.get(), buffer, sizeof buffer, 0);
  } while (count < 0 && errno == EINTR);
  if (count > 0) {
    inbox.append({buffer, static_cast<std::size_t>(count)});
    return true;
  }
  const bool nothing_now = count < 0 && errno == EAGAIN;
  if (nothing_now && socket_error == 0) return false;
  if (count < 0 && !nothing_now && socket_error == 0) socket_error = errno;
  throw ConnectionClosed{state_after_break(socket_error), socket_error == 0
                                                              ? "the peer closed the connection"
                                                              : std::strerror(socket_error)};
}

bool Connection::is_delivered() const noexcept {
  int unacknowledged = 0;
  if (::ioctl(socket.get(), SIOCOUTQ, &unacknowledged) != 0) return true;
  return !has_unsent() && unacknowledged == 0;
}

}  // namespace tccl::control
