#include "health/connection_table.h"

#include <algorithm>
#include <utility>

#include "tccl/error.h"

namespace tccl::control {

Connection& ConnectionTable::add(Connection connection) {
  const std::uint64_t number = next_number_++;
  connection.number = number;
  auto& added = connections_[number];
  added = std::make_unique<Connection>(std::move(connection));
  if (!serving_) return *added;
  try {
    added->events = added->wanted_events();
    added->service = monitor_.serve(added->socket.get(), added->events,
                                    [this, number](std::uint32_t) { on_event_(number); });
  } catch (const Error&) {
    connections_.erase(number);
    throw;
  }
  return *added;
}

Connection* ConnectionTable::find(std::uint64_t number) const {
  const auto found = connections_.find(number);
  return found == connections_.end() ? nullptr : found->second.get();
}

void ConnectionTable::remove(Connection& connection) {
  monitor_.end_service(connection.service);
  connections_.erase(connection.number);
}

void ConnectionTable::update_events(Connection& connection) {
  const std::uint32_t wanted = connection.wanted_events();
  if (std::exchange(connection.events, wanted) != wanted)
    monitor_.change_service(connection.service, wanted);
}

std::vector<Connection*> ConnectionTable::all() const {
  std::vector<Connection*> result;
  for (const auto& [number, connection] : connections_) result.push_back(connection.get());
  return result;
}

std::vector<Connection*> ConnectionTable::overdue(Clock::time_point now) const {
  std::vector<Connection*> result = all();
  std::erase_if(result, [&](const Connection* each) { return now < each->handshake_deadline; });
  return result;
}

int ConnectionTable::count_unauthenticated() const {
  return static_cast<int>(std::ranges::count_if(
      connections_, [](const auto& entry) { return entry.second->is_unauthenticated(); }));
}

Connection* ConnectionTable::oldest_unauthenticated() const {
  const auto found = std::ranges::find_if(
      connections_, [](const auto& entry) { return entry.second->is_unauthenticated(); });
  return found == connections_.end() ? nullptr : found->second.get();
}

std::vector<std::uint64_t> ConnectionTable::stop_serving() {
  serving_ = false;
  std::vector<std::uint64_t> services;
  for (const auto& [number, connection] : connections_) services.push_back(connection->service);
  return services;
}

void ConnectionTable::clear() {
  for (const auto& [number, connection] : connections_)
    if (connection->peer) connection->peer->authenticated.clear();
  connections_.clear();
}

void ConnectionTable::close_sockets() noexcept {
  for (const auto& [number, connection] : connections_) connection->socket.reset();
}

}  // namespace tccl::control
