#include "communicator/match_queue.h"

#include <algorithm>

namespace tccl {
namespace {

bool matches(const Operation& receive, int source, std::uint64_t tag) {
  return (receive.peer() == source || receive.peer() == kAnySource) && receive.tag == tag;
}

}  // namespace

P2pWorkPtr MatchQueue::take_receive(int source, std::uint64_t tag) {
  const auto found = std::ranges::find_if(receives_, [&](const P2pWorkPtr& receive) {
    return matches(receive->operation, source, tag);
  });
  if (found == receives_.end()) return nullptr;
  P2pWorkPtr receive = std::move(*found);
  receives_.erase(found);
  return receive;
}

std::optional<UnexpectedMessage> MatchQueue::take_message(const Operation& receive) {
  const auto found = std::ranges::find_if(unexpected_, [&](const UnexpectedMessage& message) {
    return matches(receive, message.source, message.tag);
  });
  if (found == unexpected_.end()) return std::nullopt;
  UnexpectedMessage message = std::move(*found);
  unexpected_.erase(found);
  return message;
}

void MatchQueue::add_unexpected(UnexpectedMessage message) {
  unexpected_.push_back(std::move(message));
}

P2pWorkPtr MatchQueue::remove(const P2pWork& receive) {
  const auto found = std::ranges::find(receives_, &receive, &P2pWorkPtr::get);
  if (found == receives_.end()) return nullptr;
  P2pWorkPtr removed = std::move(*found);
  receives_.erase(found);
  return removed;
}

}  // namespace tccl
