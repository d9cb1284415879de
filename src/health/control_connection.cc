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

bool network_does_not_answer(int problem) {
  return problem == ETIMEDOUT || problem == EHOSTUNREACH || problem == ENETUNREACH ||
         problem == EHOSTDOWN || problem == ENETDOWN;
}

ProcessState state_after_break(int problem) {
  return network_does_not_answer(problem) ? ProcessState::unreachable : ProcessState::died;
}

}  // namespace

RemoteProcess::State state_after_failed_connect(int problem) noexcept {
  return problem == ECONNREFUSED || problem == ECONNRESET ? ProcessState::died
                                                          : ProcessState::unreachable;
}

bool is_own_shortage(int problem) noexcept {
  return problem == EMFILE || problem == ENFILE || problem == ENOMEM || problem == ENOBUFS ||
         problem == EADDRNOTAVAIL || problem == EAGAIN;
}

std::uint32_t Connection::wanted_events() const noexcept {
  if (stage == Stage::connecting) return EPOLLOUT;
  return has_unsent() ? EPOLLIN | EPOLLOUT : EPOLLIN;
}

bool Connection::finish_connecting() {
  socklen_t length = sizeof problem;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &problem, &length);
  if (problem != 0)
    throw ConnectionClosed{state_after_failed_connect(problem), std::strerror(problem)};
  sockaddr_storage unused;
  length = sizeof unused;
  return ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&unused), &length) == 0;
}

void Connection::send_outbox() noexcept {
  while (has_unsent()) {
    const ssize_t count =
        ::send(socket.get(), outbox.data() + sent, outbox.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && is_own_shortage(errno)) return;  // there is no room now
    if (count < 0) {
      // What the other side said before may still be there to be read; the end comes after it.
      if (problem == 0) problem = errno;
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
  if (nothing_now && problem == 0) return false;
  if (count < 0 && !nothing_now && problem == 0) problem = errno;
  throw ConnectionClosed{state_after_break(problem),
                         problem == 0 ? "it closed the connection" : std::strerror(problem)};
}

bool Connection::is_delivered() const noexcept {
  int unacknowledged = 0;
  if (::ioctl(socket.get(), SIOCOUTQ, &unacknowledged) != 0) return true;
  return !has_unsent() && unacknowledged == 0;
}

}  // namespace tccl::control
