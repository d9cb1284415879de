#include "communicator/group_builder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/crypto.h"
#include "base/format.h"
#include "base/tcp_socket.h"
#include "communicator/communicator_impl.h"
#include "rendezvous/exit_watch.h"
#include "rendezvous/host_discovery.h"
#include "rendezvous/init_errors.h"
#include "rendezvous/join_record.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/secret.h"

namespace tccl {

std::uint64_t group_uid_from(const Bytes32& bytes) {
  std::uint64_t group_uid = 0;
  std::memcpy(&group_uid, bytes.data(), sizeof group_uid);
  return group_uid | 1;
}

void set_all_members(ContextImpl& context, GroupParts& parts, HostMap host_map,
                     const Membership::Peers& peers) {
  if (host_map.hosts() == 1) {
    parts.membership =
        std::make_shared<Membership>(parts.local_group, std::move(host_map), Membership::Peers(),
                                     /*control=*/nullptr);
    return;
  }
  parts.membership = std::make_shared<Membership>(parts.local_group, std::move(host_map), peers,
                                                  &context.network().control());
  context.listen_for_notices(parts.membership);
}

namespace {

/// The callbacks of one rendezvous: what this rank sends, and what it makes of the roster.
class GroupBuilder {
 public:
  /// `options` must outlive the builder.
  GroupBuilder(ContextImpl& context, const RendezvousOptions& options, std::uint32_t first_sequence)
      : context_(context),
        options_(options),
        rank_(options.rank),
        size_(options.size),
        first_sequence_(first_sequence) {
    parts_.local_group = std::make_shared<shm::LocalGroup>(
        context.arena(),
        shm::GroupIdentity{options.group, group_uid_from(hmac_sha256(options.secret, "group")),
                           first_sequence},
        shm::RegionLayout::of(size_, context.settings().chunk_bytes));
  }

  ~GroupBuilder() {
    if (parts_.group_tag != 0) context_.network().release_group_tag(parts_.group_tag);
  }
  GroupBuilder(const GroupBuilder&) = delete;
  GroupBuilder& operator=(const GroupBuilder&) = delete;

  /// `address` is empty if all ranks are on one host.
  PeerInfo make_peer_info(const std::string& address) {
    PeerInfo own = context_.peer_info();
    own.rank = rank_;
    own.size = size_;
    own.first_sequence = first_sequence_;
    own.region_offset = parts_.local_group->region_offset();
    if (!address.empty()) {
      context_.add_network_info(own, address, parts_.local_group->group_uid());
      parts_.secret = context_.accept_secret(options_.secret);
    }
    cpus_digest_ = own.cpus_digest;
    limiting_cgroup_ = own.limiting_cgroup;
    parts_.group_tag = own.group_tag;
    return own;
  }

  void apply_roster(const Roster& roster) {
    add_local_ranks(roster.local);
    std::vector<int> hosts;
    for (const PeerInfo& each : roster.all) hosts.push_back(each.host_index);
    HostMap host_map(hosts);
    const Membership::Peers peers = add_remote_ranks(host_map, roster.all);
    set_all_members(context_, parts_, std::move(host_map), peers);
    // All ranks are here and none has returned yet, so the keys can be removed: the next group on
    // this store must not find them.
    if (size_ == 1) return;
    remove_join_record(store_client_for(options_, {}), rank_);
    if (rank_ == 0) remove_secret(*options_.store);
  }

  BuiltGroup take() { return {std::exchange(parts_, {}), sharing_}; }

 private:
  void add_local_ranks(const std::vector<LocalPeer>& local_peers) {
    std::vector<shm::LocalMember> members;
    std::vector<int> global_ranks;
    for (const LocalPeer& each : local_peers) {
      members.emplace_back(context_.add_local_process(each), each.peer_info.region_offset);
      global_ranks.push_back(each.peer_info.rank);
      sharing_.on_same_cpus += each.peer_info.cpus_digest == cpus_digest_;
      sharing_.in_same_cgroup += each.peer_info.limiting_cgroup == limiting_cgroup_;
    }
    parts_.local_group->set_members(std::move(members), std::move(global_ranks), rank_);
  }

  Membership::Peers add_remote_ranks(const HostMap& host_map, const std::vector<PeerInfo>& all) {
    Membership::Peers peers(all.size());
    parts_.addresses.resize(all.size());
    for (const PeerInfo& each : all) {
      if (host_map.same_host(each.rank, rank_)) continue;
      const auto index = static_cast<std::size_t>(each.rank);
      const ContextImpl::RemoteAddress remote = context_.add_remote_process(each, options_.secret);
      peers[index] = remote.process;
      parts_.addresses[index] = {remote.fi_addr, each.group_tag};
    }
    return peers;
  }

  ContextImpl& context_;
  const RendezvousOptions& options_;
  int rank_;
  int size_;
  std::uint32_t first_sequence_;
  std::uint64_t cpus_digest_ = 0;
  std::uint64_t limiting_cgroup_ = 0;
  CpuSharing sharing_{0, 0};
  GroupParts parts_;
};

}  // namespace

namespace {

/// How long a rank that cannot start waits for rank 0 to tell the others why.
constexpr Milliseconds kReportTimeout{5'000};

RendezvousOptions rendezvous_options_for(Store& store, int rank, int size,
                                         const Communicator::Options& options,
                                         const Settings& settings) {
  return {.store = &store,
          .group = options.name,
          .rank = rank,
          .size = size,
          .timeout = options.timeout,
          .deadline = deadline_after(options.timeout),
          .may_have_other_users = !settings.secret_file.empty()};
}

/// See RendezvousOptions::lost_process.
std::string lost_process(const Communicator::Options& options, int rank) {
  const auto index = static_cast<std::size_t>(rank);
  const auto parent = std::static_pointer_cast<CommunicatorImpl>(options.parent.lock());
  if (!parent || index >= options.ranks_in_parent.size()) return {};
  std::string process;
  try {
    process = parent->ended_process(options.ranks_in_parent[index]);
  } catch (const Error& error) {
    throw init_error(options.name, error.code(),
                     formatted("group {} has failed: {}", parent->name(), error.what()), {rank});
  }
  if (process.empty()) return {};
  return formatted("rank {}, which is {} of group {},", rank, process, parent->name());
}

/// See RendezvousOptions::stalled_processes.
std::vector<std::pair<int, std::string>> stalled_processes(const Communicator::Options& options,
                                                           const std::vector<int>& ranks) {
  const auto parent = std::static_pointer_cast<CommunicatorImpl>(options.parent.lock());
  if (!parent || options.ranks_in_parent.empty()) return {};
  std::vector<int> in_parent;
  for (const int rank : ranks)
    in_parent.push_back(options.ranks_in_parent.at(static_cast<std::size_t>(rank)));
  std::vector<std::pair<int, std::string>> texts;
  for (const auto& [rank_in_parent, process] : parent->stalled_ranks(in_parent)) {
    const int rank = ranks[static_cast<std::size_t>(std::ranges::find(in_parent, rank_in_parent) -
                                                    in_parent.begin())];
    texts.emplace_back(
        rank, formatted("rank {}, which is {} of group {},", rank, process, parent->name()));
  }
  return texts;
}

void rendezvous_as(GroupBuilder& builder, RendezvousOptions& options, ContextImpl& context,
                   Fd exit_watch) {
  options.make_peer_info = [&](const std::string& address) {
    return builder.make_peer_info(address);
  };
  options.apply_roster = [&](const Roster& roster) { builder.apply_roster(roster); };
  rendezvous(options, context.arena().memory()->fd(), context.process_fd(), std::move(exit_watch));
}

bool may_have_several_hosts(const Communicator::Options& options) {
  const auto parent = std::static_pointer_cast<CommunicatorImpl>(options.parent.lock());
  return !parent || parent->hosts() > 1;
}

/// On rank 0; sets options.rank_zero.watch_address. Without a listener the group forms all the same.
Fd prepare_exit_watch(RendezvousOptions& options) noexcept {
  try {
    Fd listener = listen_for_exit_watch(options.offer_addresses());
    if (!listener) return {};
    const SocketAddress address = SocketAddress::of_local_end(listener.get());
    options.rank_zero.watch_address = {address.host(), address.port()};
    return listener;
  } catch (const std::exception&) {
    return {};  // reported when the hosts exchange their addresses
  }
}

/// Rank 0 has failed to publish its secret: the other ranks get the reason in its place, if the store
/// works now.
void publish_missing_secret(RendezvousOptions& options) {
  const Status failure = failure_status(attributed_to_this_rank(options));
  options.secret = to_hex(random_bytes32());  // names this attempt
  replace_secret_by_failure(options, failure);
}

void agree_on_new_secret(RendezvousOptions& options, ContextImpl& context, Fd& exit_watch) {
  try {
    options.secret = agree_on_secret(options, context.settings().secret_file);
  } catch (const Error&) {
    context.set_last_failed_attempt(options.last_failed_attempt);
    exit_watch.reset();  // the store may need the descriptor
    if (options.rank == 0) publish_missing_secret(options);
    throw attributed_to_this_rank(options);
  } catch (...) {  // an interrupt
    context.set_last_failed_attempt(options.last_failed_attempt);
    throw;
  }
}

/// For the exception that is being handled. What a rendezvous has reported already stays.
void after_failed_rendezvous(ContextImpl& context, const RendezvousOptions& options) {
  if (options.size == 1) return;
  const Status failure = failure_status(attributed_to_this_rank(options));
  context.set_last_failed_attempt(attempt_of(options.secret));
  try_publish_failure(options, failure);
  if (options.rank == 0) replace_secret_by_failure(options, failure);
}

}  // namespace

BuiltGroup build_group(ContextImpl& context, Store& store, int rank, int size,
                       const Communicator::Options& options) {
  RendezvousOptions rendezvous_options =
      rendezvous_options_for(store, rank, size, options, context.settings());
  rendezvous_options.offer_addresses = [&] { return context.offer_addresses(store.host()); };
  rendezvous_options.check_interrupt = context.check_interrupt();
  rendezvous_options.lost_process = [&](int other) { return lost_process(options, other); };
  rendezvous_options.stalled_processes = [&](const std::vector<int>& others) {
    return stalled_processes(options, others);
  };
  rendezvous_options.last_failed_attempt = context.last_failed_attempt();
  Fd exit_watch;
  // CCL_PORT_RANGE need not have a port for it.
  if (rank == 0 && size > 1 && may_have_several_hosts(options) &&
      context.settings().ports.first == 0)
    exit_watch = prepare_exit_watch(rendezvous_options);
  // A group of one rank does not use the store: torch gives all groups of one rank the same keys.
  if (size == 1)
    rendezvous_options.secret = to_hex(random_bytes32());
  else
    agree_on_new_secret(rendezvous_options, context, exit_watch);
  try {
    if (size > 1) publish_joined(store_client_for(rendezvous_options, {}), rank);
    GroupBuilder builder(context, rendezvous_options, options.first_sequence);
    rendezvous_as(builder, rendezvous_options, context, std::move(exit_watch));
    return builder.take();
  } catch (...) {
    after_failed_rendezvous(context, rendezvous_options);
    throw;
  }
}

void report_failed_start(Store& store, int rank, int size, const Communicator::Options& options,
                         const std::string& reason) noexcept {
  if (size == 1) return;
  try {
    const Settings settings = parse_settings({"CCL_SECRET_FILE"});
    RendezvousOptions rendezvous_options =
        rendezvous_options_for(store, rank, size, options, settings);
    // The caller waits to report its own error.
    rendezvous_options.deadline =
        std::min(rendezvous_options.deadline, deadline_after(kReportTimeout));
    rendezvous_options.secret = agree_on_secret(rendezvous_options, settings.secret_file);
    const Status failure = failure_status(failed_start_error(rendezvous_options, reason));
    try_publish_failure(rendezvous_options, failure);
    if (rank == 0) replace_secret_by_failure(rendezvous_options, failure);
  } catch (...) {
    // The other ranks then fail at the timeout.
  }
}

}  // namespace tccl
