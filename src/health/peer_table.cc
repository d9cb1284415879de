#include "health/peer_table.h"

#include <algorithm>
#include <utility>

namespace tccl::control {

void PeerTable::add_secret(const std::string& secret) { secrets_[key_id(secret)] = secret; }

void PeerTable::retire_secret(const std::string& secret) {
  for (const auto& [id, weak] : peers_) {
    const auto peer = weak.lock();
    if (!peer || std::ranges::find(peer->secrets, secret) == peer->secrets.end()) continue;
    // The last one stays: notices of the closed group may wait for a connection.
    peer->last_secret_is_retired = peer->secrets.size() == 1;
    if (!peer->last_secret_is_retired) std::erase(peer->secrets, secret);
  }
  retired_.push_back(key_id(secret));
  if (retired_.size() <= max_retired_) return;
  secrets_.erase(retired_.front());
  retired_.pop_front();
}

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

std::shared_ptr<RemotePeer> PeerTable::find_or_add(const RemoteProcess::Identity& identity,
                                                   const std::string& secret) {
  auto peer = find_or_add(identity);
  if (std::exchange(peer->last_secret_is_retired, false)) peer->secrets.clear();
  std::erase(peer->secrets, secret);
  peer->secrets.push_back(secret);
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
