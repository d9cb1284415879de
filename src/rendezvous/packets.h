// The packets that the ranks of one host exchange over the rendezvous socket, besides PeerInfo.
// Sent as bytes between processes of one build.
//
//   coordinator                                member
//     Challenge                          ->
//                                        <-      JoinRequest
//     JoinReply                          ->
//     HostAddress                        ->                    once the hosts are known
//                                        <-      PeerInfo (+ descriptors), or a failed Status
//     PeerInfo x ranks (+ descriptors)   ->
//                                        <-      Status        has it applied the roster?
//     Status                             ->                    the outcome, the same for all
//
// The coordinator may send a failed Status instead of any packet after JoinRequest.
// Thread safety: plain values; functions without shared state.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/challenge_response.h"
#include "base/clock.h"
#include "tccl/error.h"

namespace tccl {

/// The binding data of the challenge-response handshake on the rendezvous socket.
inline constexpr std::string_view kLocalHandshake = "local rendezvous";

struct JoinRequest {
  Response response;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t pid;
};

struct JoinReply {
  Confirmation confirmation;
  std::int32_t coordinator_rank;
};

struct HostAddress {
  char address[64];  // that this host advertises to the others; empty if there are none
  /// A received one may lack the terminator.
  [[nodiscard]] std::string text() const { return {address, ::strnlen(address, sizeof address)}; }
};

/// Success, or why a rendezvous failed.
struct Status {
  Errc code = Errc::internal;
  std::uint8_t ok = 1;
  std::int32_t rank = -1;  // the rank concerned
  char text[1024] = {};
};

Status failure_status(const Error& error);
void throw_if_failed(const Status& status);

/// Throws if the next packet is a failed Status instead of the expected one. The socket must be
/// readable.
void throw_if_failure_received(int socket, Deadline deadline);

template <class T>
std::string_view as_bytes(const T& packet) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(&packet), sizeof packet};
}

/// Removes the next packet from the front of `bytes`.
template <class T>
T cut_packet(std::string_view& bytes) {
  T packet;
  if (bytes.size() < sizeof packet) throw Error(Errc::system, "a value in the store is truncated");
  std::memcpy(&packet, bytes.data(), sizeof packet);
  bytes.remove_prefix(sizeof packet);
  return packet;
}

}  // namespace tccl
