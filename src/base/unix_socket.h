// Abstract Unix sockets that carry whole packets and descriptors. Every call has a deadline.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"

namespace tccl {

/// An invalid Fd if the name is taken.
Fd listen_on(const std::string& abstract_name);
/// An invalid Fd if nobody listens (yet).
Fd connect_to(const std::string& abstract_name);

bool wait_readable(int socket, Deadline deadline);

void send_packet(int socket, const void* data, std::size_t bytes, Deadline deadline,
                 std::span<const int> fds = {});
/// Of the next packet; 0 at end of file. It must be readable.
std::size_t length_of_next_packet(int socket);
/// Reads one packet of exactly `bytes` and its descriptors; throws Error{system} on anything else,
/// Error{peer_lost} at end of file.
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
