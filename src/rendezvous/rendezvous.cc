#include "rendezvous/rendezvous.h"

#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "base/format.h"
#include "base/interrupt.h"
#include "base/unix_socket.h"
#include "rendezvous/exit_watch.h"
#include "rendezvous/host_agreement.h"
#include "rendezvous/host_discovery.h"
#include "rendezvous/init_errors.h"
#include "rendezvous/local_client.h"
#include "rendezvous/local_server.h"
#include "rendezvous/secret.h"
#include "tccl/error.h"

namespace tccl {
namespace {

void form_single_rank_group(const RendezvousOptions& options) {
  Roster roster;
  roster.local.resize(1);
  roster.local.front().peer_info = options.make_peer_info(/*address=*/"");
  roster.all.push_back(roster.local.front().peer_info);
  options.apply_roster(roster);
}

HostMap discover_hosts(const RendezvousOptions& options, LocalServer& server) {
  HostDiscovery discovery(options);
  while (!discovery.is_done()) server.poll(discovery.fd());
  try {
    return HostMap(discovery.result());
  } catch (const Error& error) {
    if (!is_unattributed_timeout(error)) throw;
    throw missing_ranks_timeout(options, server.joined_ranks());
  }
}

Roster gather_single_host(LocalServer& server, const HostMap& host_map) {
  Roster roster;
  roster.local = server.gather_peer_infos(host_map, /*address=*/"");
  for (const LocalPeer& peer : roster.local) roster.all.push_back(peer.peer_info);
  return roster;
}

/// The steps of a coordinator once it knows the hosts. One host needs no agreement through the
/// store.
void form_group(const RendezvousOptions& options, LocalServer& server, const HostMap& host_map,
                int memory_fd, int pid_fd) {
  const auto distribute = [&](const Roster& roster) {
    if (host_map.host_of(options.rank) == 0)
      remove_host_coordinators(store_client_for(options, {}));
    server.distribute(roster, memory_fd, pid_fd);
  };
  if (host_map.hosts() == 1) return distribute(gather_single_host(server, host_map));
  const auto poll = [&] {
    if (options.check_interrupt) options.check_interrupt();
    server.check_connections();
  };
  HostAgreement hosts(options, host_map, poll);
  const std::string address = hosts.agree_on_address();
  const Roster roster =
      hosts.exchange_peer_infos([&] { return server.gather_peer_infos(host_map, address); });
  hosts.commit([&] { distribute(roster); });
}

/// What the other ranks get of the exception that is being handled.
Status own_failure(const RendezvousOptions& options, bool interrupted) {
  return failure_status(interrupted ? interrupt_error(options) : attributed_to_this_rank(options));
}

/// The steps of the rank that bound the rendezvous socket of its host.
void coordinate(const RendezvousOptions& options, const bool& interrupted, Fd listener,
                int memory_fd, int pid_fd) {
  LocalServer server(options, std::move(listener));
  std::optional<HostMap> host_map;
  try {
    host_map.emplace(discover_hosts(options, server));
    form_group(options, server, *host_map, memory_fd, pid_fd);
    server.announce(Status{});
  } catch (...) {
    const Status status = own_failure(options, interrupted);
    server.announce(status);
    // Every host polls for a published failure until the group is formed.
    if (!host_map || host_map->hosts() > 1) try_publish_failure(options, status);
    throw;
  }
}

/// For what the coordinator of this host knows about a failure of the store. Longer than the wait in
/// attributed_to_this_rank().
constexpr std::chrono::milliseconds kCoordinatorGrace{1'000};

/// The steps of a rank that connected to the coordinator of its host. It reports its failure to the
/// coordinator: what failed here alone (its store, an interrupt), or the rank that it found to have
/// ended.
void join(const RendezvousOptions& options, const bool& interrupted, LocalClient& client,
          int memory_fd, int pid_fd) {
  try {
    client.join(memory_fd, pid_fd);
  } catch (const Error& error) {
    if (is_unattributed_system_error(error)) client.throw_pending_failure(kCoordinatorGrace);
    client.report(error.ranks().empty() ? own_failure(options, interrupted)
                                        : failure_status(error));
    throw;
  } catch (...) {
    client.report(own_failure(options, interrupted));
    throw;
  }
}

/// This rank coordinates its host, or is connected to the rank that does.
struct LocalEnd {
  Fd listener;
  std::optional<LocalClient> client;
};

LocalEnd find_local_end(const RendezvousOptions& options) {
  while (Clock::now() < options.deadline) {
    if (options.check_interrupt) options.check_interrupt();
    if (Fd listener = listen_on(rendezvous_socket_name(options.secret)))
      return {std::move(listener), std::nullopt};
    if (auto client = LocalClient::connect(options)) return {Fd(), std::move(client)};
    // The coordinator is between bind() and listen(), or it has just exited.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (const auto cause = known_cause_of_timeout(options, /*levels=*/0)) throw *cause;
  throw init_timeout(options, "no rank of this host accepts connections on the rendezvous socket",
                     {options.rank});
}

/// The coordinators of the hosts other than rank 0's watch its process.
std::shared_ptr<const ExitWatchClient> watch_rank_zero(const RendezvousOptions& options,
                                                       bool coordinates) {
  if (!coordinates || options.rank_zero.watch_address.port == 0 ||
      options.rank_zero.identity.is_local())
    return nullptr;
  return std::make_shared<ExitWatchClient>(options);
}

/// RendezvousOptions::lost_process, which also knows about the process of rank 0.
std::function<std::string(int rank)> including_rank_zero(
    std::function<std::string(int rank)> lost_process, const RankZero& rank_zero,
    const std::shared_ptr<const ExitWatchClient>& watch) {
  return [known = std::move(lost_process), rank_zero, watch](int rank) {
    if (rank == 0 && (rank_zero.identity.has_ended() || (watch && watch->rank_zero_has_ended())))
      return formatted("rank 0 ({})", rank_zero.process);
    return known ? known(rank) : std::string();
  };
}

void run(RendezvousOptions& options, int memory_fd, int pid_fd, Fd exit_watch) {
  if (options.size == 1) return form_single_rank_group(options);
  std::optional<ExitWatchServer> server;
  if (exit_watch) server.emplace(options, std::move(exit_watch));
  bool interrupted = false;
  options.check_interrupt = marking_interrupts(std::move(options.check_interrupt), interrupted);
  LocalEnd local_end;
  try {
    local_end = find_local_end(options);
  } catch (...) {
    // No coordinator can tell the others.
    try_publish_failure(options, own_failure(options, interrupted));
    throw;
  }
  options.lost_process =
      including_rank_zero(options.lost_process, options.rank_zero,
                          watch_rank_zero(options, /*coordinates=*/!local_end.client));
  if (local_end.client) return join(options, interrupted, *local_end.client, memory_fd, pid_fd);
  coordinate(options, interrupted, std::move(local_end.listener), memory_fd, pid_fd);
}

/// The other ranks get what `callback` throws: it must name this rank.
template <class Result, class... Arguments>
void attribute_failures(std::function<Result(Arguments...)>& callback,
                        const RendezvousOptions& options) {
  callback = [call = std::move(callback), &options](Arguments... arguments) -> Result {
    try {
      return call(arguments...);
    } catch (...) {
      throw attributed_to_this_rank(options);
    }
  };
}

}  // namespace

std::string host_name() {
  char name[64] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string this_process_text() { return formatted("host {}, pid {}", host_name(), ::getpid()); }

void rendezvous(RendezvousOptions options, int memory_fd, int pid_fd, Fd exit_watch) {
  attribute_failures(options.offer_addresses, options);
  attribute_failures(options.make_peer_info, options);
  attribute_failures(options.apply_roster, options);
  try {
    run(options, memory_fd, pid_fd, std::move(exit_watch));
  } catch (const Error&) {
    throw attributed_to_this_rank(options);
  }
}

}  // namespace tccl
