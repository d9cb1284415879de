// What is said at a meeting besides peer_infos: packets between processes of one build.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/crypto.h"
#include "tccl/error.h"

namespace tccl {

struct Challenge {
  Digest number;
};
struct Answer {
  Digest number;
  Digest proof;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t pid;
};
struct Counterproof {
  Digest proof;
  std::int32_t rank;  // of who hosts the meeting
};
/// What follows depends on whether there are other hosts.
struct HostConfig {
  char address[64];  // of this host for the others; empty if there are none
};

/// How a meeting ended, for everyone alike.
struct Status {
  Errc code = Errc::internal;
  std::uint8_t good = 1;
  std::int32_t rank = -1;
  char text[256] = {};
};

inline Status failure_status(const Error& error) {
  Status status{.code = error.code(), .good = 0};
  status.rank = error.ranks().empty() ? -1 : error.ranks().front();
  std::strncpy(status.text, error.what(), sizeof status.text - 1);
  return status;
}

inline void throw_if_failed(const Status& status) {
  if (status.good != 0) return;
  // It may come out of a store, to which others may write.
  const std::string text(status.text, ::strnlen(status.text, sizeof status.text));
  throw Error(status.code, text,
              status.rank < 0 ? std::vector<int>{} : std::vector<int>{status.rank});
}

template <class T>
std::string_view as_bytes(const T& packet) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(&packet), sizeof packet};
}

/// Takes the next packet from the front of `bytes`.
template <class T>
T cut_packet(std::string_view& bytes) {
  T packet;
  if (bytes.size() < sizeof packet) throw Error(Errc::system, "a key of the store is cut off");
  std::memcpy(&packet, bytes.data(), sizeof packet);
  bytes.remove_prefix(sizeof packet);
  return packet;
}

}  // namespace tccl
