#include "rendezvous/packets.h"

#include <string>
#include <vector>

#include "base/unix_socket.h"
#include "rendezvous/peer_info.h"

namespace tccl {

Status failure_status(const Error& error) {
  Status status{.code = error.code(), .ok = 0};
  status.rank = error.ranks().empty() ? -1 : error.ranks().front();
  std::strncpy(status.text, error.what(), sizeof status.text - 1);
  return status;
}

void throw_if_failed(const Status& status) {
  if (status.ok != 0) return;
  // A Status from the store may lack the terminator: other processes may write there.
  const std::string text(status.text, ::strnlen(status.text, sizeof status.text));
  throw Error(status.code, text,
              status.rank < 0 ? std::vector<int>{} : std::vector<int>{status.rank});
}

void throw_if_failure_received(int socket, Deadline deadline) {
  static_assert(sizeof(Status) != sizeof(PeerInfo) && sizeof(Status) != sizeof(HostAddress) &&
                    sizeof(Status) != sizeof(JoinReply),
                "a packet is recognised by its size");
  if (next_packet_bytes(socket) == sizeof(Status))
    throw_if_failed(receive_packet<Status>(socket, deadline));
}

}  // namespace tccl
