// What ranks tell each other while they shrink a group: on one host through LocalAgreement, between
// hosts through Membership::send_shrink_message().
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "communicator/derived_group.h"
#include "tccl/error.h"

namespace tccl {

/// All ranks are those of the group that is shrunk.
struct ShrinkMessage {
  enum class Kind : std::uint32_t {
    offer,   // the sender, or every member of its host, has called shrink()
    formed,  // the outcome: the new group exists
    failed,  // the outcome: an error, the same for all
    watch,   // opens a connection, whose end tells the sender that the receiver has died
  };
  struct Member {
    int rank;
    GroupAddress address;
  };

  Kind kind = Kind::watch;
  std::uint32_t attempt = 0;
  int sender = -1;
  std::vector<int> excluded;    // offer, formed
  std::vector<Member> members;  // offer, formed: with the addresses of their parts of the new group
  Errc code = Errc::internal;   // failed, as the next two
  std::string text;
  std::vector<int> ranks;
};

std::string encode(const ShrinkMessage& message);
/// Throws Error{system} if these are not the bytes of a message.
ShrinkMessage decode_shrink_message(std::string_view bytes);

}  // namespace tccl
