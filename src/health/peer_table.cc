#include "health/peer_table.h"

namespace tccl::control {

void PeerTable::add_secret(const std::string& secret) { secrets_[key_id(secret)] = secret; }

const std::string* PeerTable::find_secret(const KeyId& key) const {
  const auto found = secrets_.find(key);
  return found == secrets_.end() ? nullptr : &found->second;
}

std::shared_ptr<RemotePeer> PeerTable::find_or_add(const RemoteProcess::Identity& identity) {
  std::weak_ptr<RemotePeer>& known = peers_[identity.id];
  auto peer = known.lock();
  // A state other than alive is final, but the network to it may work again: use a new object.
  if (!peer || peer->has_final_state) known = peer = std::make_shared<RemotePeer>(identity);
  return peer;
}

std::vector<std::shared_ptr<RemotePeer>> PeerTable::wanted() {
  std::erase_if(peers_, [](const auto& known) { return known.second.expired(); });
  std::vector<std::shared_ptr<RemotePeer>> result;
  for (const auto& [id, weak] : peers_)
    if (auto peer = weak.lock(); peer && peer->wanted) result.push_back(std::move(peer));
  return result;
}

}  // namespace tccl::control
