// Abstract Unix sockets (SOCK_SEQPACKET): packets keep their boundaries and may carry file
// descriptors. Every wait has a deadline.
//
//   Fd listener = listen_on("tccl-4711");    // invalid if another process has the name
//   send_packet(socket, Status{}, deadline, {memory_fd});
//   auto status = receive_packet<Status>(socket, deadline, &fds);
//
// Thread safety: functions without shared state.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"

namespace tccl {

/// Returns an invalid Fd if another socket is bound to the name.
Fd listen_on(const std::string& abstract_name);
/// Returns an invalid Fd if no socket listens on the name (yet).
Fd connect_to(const std::string& abstract_name);

/// Whether the process at the other end belongs to this process's user, or to root, who may do what
/// every user may.
bool belongs_to_this_user_or_root(int socket);
/// "user 1000, pid 4711": the process at the other end.
std::string peer_text(int socket);

/// False at the deadline.
bool wait_readable(int socket, Deadline deadline);

/// Throws Error{peer_lost} if the other end is closed, Error{timeout} at the deadline.
void send_packet(int socket, const void* data, std::size_t bytes, Deadline deadline,
                 std::span<const int> fds = {});
/// Length of the next packet, which stays in the queue; 0 at end of file. The socket must be
/// readable.
std::size_t next_packet_bytes(int socket);
/// Drops the next packet and its descriptors.
void discard_packet(int socket) noexcept;
/// Reads one packet of exactly `bytes` and returns its descriptors. Throws Error{mismatch} if the
/// packet has another length, Error{system} if this process can open no more descriptors,
/// Error{peer_lost} at end of file, Error{timeout} at the deadline.
std::vector<Fd> receive_packet(int socket, void* data, std::size_t bytes, Deadline deadline);

template <class T>
void send_packet(int socket, const T& packet, Deadline deadline, std::span<const int> fds = {}) {
  static_assert(std::is_trivially_copyable_v<T>);
  send_packet(socket, &packet, sizeof packet, deadline, fds);
}
template <class T>
T receive_packet(int socket, Deadline deadline, std::vector<Fd>* fds = nullptr) {
  static_assert(std::is_trivially_copyable_v<T>);
  T packet;
  auto received = receive_packet(socket, &packet, sizeof packet, deadline);
  if (fds != nullptr) *fds = std::move(received);
  return packet;
}

}  // namespace tccl
