#include "health/connection_table.h"

#include <algorithm>
#include <utility>

namespace tccl::control {

Connection& ConnectionTable::add(Connection connection) {
  const std::uint64_t id = next_id_++;
  connection.id = id;
  const auto& added =
      connections_.emplace(id, std::make_unique<Connection>(std::move(connection))).first->second;
  if (!watching_) return *added;
  try {
    added->events = added->wanted_events();
    added->handler = monitor_.watch_fd(added->socket.get(), added->events,
                                       [this, id](std::uint32_t) { on_event_(id); });
  } catch (...) {
    connections_.erase(id);
    throw;
  }
  return *added;
}

Connection* ConnectionTable::find(std::uint64_t id) const {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

void ConnectionTable::remove(Connection& connection) {
  monitor_.unwatch_fd(connection.handler);
  connections_.erase(connection.id);
}

void ConnectionTable::update_events(Connection& connection) {
  const std::uint32_t wanted = connection.wanted_events();
  if (std::exchange(connection.events, wanted) != wanted)
    monitor_.change_events(connection.handler, wanted);
}

std::vector<Connection*> ConnectionTable::all() const {
  std::vector<Connection*> result;
  for (const auto& [id, connection] : connections_) result.push_back(connection.get());
  return result;
}

std::vector<Connection*> ConnectionTable::overdue(Clock::time_point now) const {
  std::vector<Connection*> result = all();
  std::erase_if(result, [&](const Connection* each) { return now < each->handshake_deadline; });
  return result;
}

std::vector<Connection*> ConnectionTable::of_broken_peers(Clock::time_point now) const {
  std::vector<Connection*> result = all();
  std::erase_if(result, [&](const Connection* each) {
    return !each->is_authenticated() || now < each->peer->close_all_at;
  });
  return result;
}

int ConnectionTable::count_unauthenticated() const {
  return static_cast<int>(std::ranges::count_if(
      connections_, [](const auto& entry) { return entry.second->is_unauthenticated(); }));
}

int ConnectionTable::count_unauthenticated_of(const std::string& remote_host) const {
  return static_cast<int>(std::ranges::count_if(connections_, [&](const auto& entry) {
    return entry.second->is_unauthenticated() && entry.second->remote_host == remote_host;
  }));
}

std::vector<std::uint64_t> ConnectionTable::stop_watching() {
  watching_ = false;
  std::vector<std::uint64_t> handlers;
  for (const auto& [id, connection] : connections_) handlers.push_back(connection->handler);
  return handlers;
}

void ConnectionTable::clear() {
  for (const auto& [id, connection] : connections_)
    if (connection->peer) connection->peer->authenticated.clear();
  connections_.clear();
}

void ConnectionTable::close_in_child() noexcept {
  for (const auto& [id, connection] : connections_) connection->socket.reset();
}

}  // namespace tccl::control
