#include "health/peer_table.h"

#include <algorithm>
#include <utility>

namespace tccl::control {

void PeerTable::add_secret(const std::string& secret) {
  secrets_[key_id(secret)] = {.text = secret};
}

/// Needs no memory: called when a group is closed, which cannot fail.
void PeerTable::retire_secret(const std::string& secret) noexcept {
  for (const auto& [id, weak] : peers_) {
    const auto peer = weak.lock();
    if (!peer || std::ranges::find(peer->secrets, secret) == peer->secrets.end()) continue;
    // The last one stays: notices of the closed group may wait for a connection.
    peer->last_secret_is_retired = peer->secrets.size() == 1;
    if (!peer->last_secret_is_retired) std::erase(peer->secrets, secret);
  }
  const auto found = secrets_.find(key_id(secret));
  if (found == secrets_.end()) return;
  found->second.retired = ++retirements_;
  forget_oldest_retired();
}

/// If there are too many.
void PeerTable::forget_oldest_retired() noexcept {
  std::size_t count = 0;
  auto oldest = secrets_.end();
  for (auto each = secrets_.begin(); each != secrets_.end(); ++each) {
    if (each->second.retired == 0) continue;
    ++count;
    if (oldest == secrets_.end() || each->second.retired < oldest->second.retired) oldest = each;
  }
  if (count > max_retired_) secrets_.erase(oldest);
}

const std::string* PeerTable::find_secret(const KeyId& key) const {
  const auto found = secrets_.find(key);
  return found == secrets_.end() ? nullptr : &found->second.text;
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
