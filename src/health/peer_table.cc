#include "health/peer_table.h"

namespace tccl::control {

void PeerTable::add_secret(const std::string& secret) {
  AcceptedSecret& accepted = secrets_[key_id(secret)];
  accepted.secret = secret;
  ++accepted.uses;
}

void PeerTable::remove_secret(const std::string& secret) {
  const auto found = secrets_.find(key_id(secret));
  if (found != secrets_.end() && --found->second.uses == 0) secrets_.erase(found);
}

const std::string* PeerTable::find_secret(const KeyId& key) const {
  const auto found = secrets_.find(key);
  return found == secrets_.end() ? nullptr : &found->second.secret;
}

std::shared_ptr<Peer> PeerTable::find_or_add(const RemoteProcess::Identity& identity) {
  std::weak_ptr<Peer>& known = peers_[identity.id];
  auto peer = known.lock();
  // The state of an ended peer is final, but the network to it may work again: use a new object.
  if (!peer || peer->ended) known = peer = std::make_shared<Peer>(identity);
  return peer;
}

std::vector<std::shared_ptr<Peer>> PeerTable::wanted() {
  std::erase_if(peers_, [](const auto& known) { return known.second.expired(); });
  std::vector<std::shared_ptr<Peer>> result;
  for (const auto& [id, weak] : peers_)
    if (auto peer = weak.lock(); peer && peer->wanted) result.push_back(std::move(peer));
  return result;
}

}  // namespace tccl::control
