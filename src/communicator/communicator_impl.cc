#include <algorithm>
#include <cstring>
#include <thread>
#include <tuple>

#include "base/format.h"
#include "communicator/communicator_impl.h"
#include "communicator/validate.h"
#include "operation/op_traits.h"
#include "rendezvous/secret.h"
#include "tccl/error.h"

namespace tccl {

Communicator::~Communicator() = default;

namespace {

std::uint64_t uid_from(const Digest& digest) {
  std::uint64_t uid = 0;
  std::memcpy(&uid, digest.data(), sizeof uid);
  return uid | 1;  // never zero, which means "given back"
}

/// Of an index that may have come from the network.
const char* name_of_algorithm(std::uint8_t index) {
  return index < algorithms().size() ? algorithm(index).name : "unknown";
}

/// Counts of the v-forms that every rank must pass alike, as one number.
std::uint64_t hash_of_counts(const Operation& o) {
  std::uint64_t hash = 1;
  if (o.op == Op::allgatherv)
    for (const Block& block : o.out_blocks) hash = mix(hash, block.count);
  if (o.op == Op::reduce_scatterv)
    for (const ConstBlock& block : o.in_blocks) hash = mix(hash, block.count);
  return hash == 1 ? 0 : hash;
}

/// Elements as all ranks count them; of the v-forms with shared counts, those of all ranks.
std::size_t shared_count(const Operation& o) {
  std::size_t count = counts_are_private(o.op) || counts_are_shared(o.op) ? 0 : o.count;
  if (o.op == Op::allgatherv)
    for (const Block& block : o.out_blocks) count += block.count;
  if (o.op == Op::reduce_scatterv)
    for (const ConstBlock& block : o.in_blocks) count += block.count;
  return count;
}

/// What has not left for another host after this time goes to a process that takes nothing: one
/// that computes is served by its progress thread.
constexpr Milliseconds kLastWords{10'000};

/// Below this a message is not shorter for having fewer bytes.
constexpr std::size_t kLeastPackedBytes = std::size_t{32} << 10;

/// Only float32 sums can be packed, and only those that end on all ranks.
WireFormat wire_format_of(const Operation& o, std::size_t count, WireFormat by_setting) {
  const ReduceOp op = o.reduction.op;
  const bool packs = reduces(o.op) && o.op != Op::reduce && o.dtype == DType::float32 &&
                     (op == ReduceOp::sum || op == ReduceOp::avg || op == ReduceOp::premul_sum) &&
                     count * sizeof(float) >= kLeastPackedBytes;
  if (!packs) return WireFormat::same;
  return o.wire_format == WireFormat::by_setting ? by_setting : o.wire_format;
}

/// Completes the parts of a group whose members on this host are known.
void add_members(ContextImpl& context, CommunicatorImpl::Parts& parts, HostMap host_map,
                 const Members::Peers& peers) {
  if (host_map.hosts() == 1) {
    parts.members = std::make_shared<Members>(parts.group, std::move(host_map), Members::Peers(),
                                              /*control=*/nullptr);
    return;
  }
  parts.members = std::make_shared<Members>(parts.group, std::move(host_map), peers,
                                            &context.network().control());
  context.listen_for(parts.members);
}

/// What becomes of a meeting: the group on this host, and how to reach the others.
class GroupBuilder {
 public:
  GroupBuilder(ContextImpl& context, Store& store, std::string secret, int rank, int size,
               const Communicator::Options& options)
      : context_(context),
        store_(store),
        secret_(std::move(secret)),
        rank_(rank),
        size_(size),
        first_sequence_(options.first_sequence) {
    parts_.group = std::make_shared<shm::Group>(
        context.arena(),
        shm::Group::Identity{options.name, uid_from(hmac_sha256(secret_, "group")),
                             options.first_sequence},
        shm::RegionLayout::of(size, context.settings().chunk_bytes));
  }

  ~GroupBuilder() {
    if (parts_.group_id != 0) context_.network().release_group_id(parts_.group_id);
  }
  GroupBuilder(const GroupBuilder&) = delete;
  GroupBuilder& operator=(const GroupBuilder&) = delete;

  PeerInfo make_peer_info(const std::string& address) {
    PeerInfo own = context_.peer_info();
    own.rank = rank_;
    own.size = size_;
    own.first_sequence = first_sequence_;
    own.region_offset = parts_.group->region_offset();
    if (!address.empty()) {
      context_.add_network_info(own, address);
      context_.network().control().add_secret(secret_);
    }
    cores_digest_ = own.cores_digest;
    parts_.group_id = own.group_id;
    return own;
  }

  void accept(const Roster& roster) {
    add_local_ranks(roster.local);
    std::vector<int> hosts;
    for (const PeerInfo& each : roster.all) hosts.push_back(each.host_index);
    HostMap host_map(hosts);
    const Members::Peers peers = add_remote_ranks(host_map, roster.all);
    add_members(context_, parts_, std::move(host_map), peers);
    // Everyone is here and nobody has returned yet: the one moment at which a next group on this
    // store cannot meet the keys of this one.
    if (size_ > 1) remove_rendezvous_keys(store_, rank_);
  }

  CommunicatorImpl::Parts take_parts() { return std::exchange(parts_, {}); }
  /// Ranks of this host that may use the same cores as this one.
  [[nodiscard]] int sharing() const { return sharing_; }

 private:
  void add_local_ranks(const std::vector<LocalPeer>& here) {
    std::vector<shm::Member> members;
    std::vector<int> global_ranks;
    for (const LocalPeer& local_peer : here) {
      members.emplace_back(context_.add_peer(local_peer), local_peer.peer_info.region_offset);
      global_ranks.push_back(local_peer.peer_info.rank);
      sharing_ += local_peer.peer_info.cores_digest == cores_digest_;
    }
    parts_.group->set_members(std::move(members), std::move(global_ranks), rank_);
  }

  Members::Peers add_remote_ranks(const HostMap& host_map, const std::vector<PeerInfo>& everyone) {
    Members::Peers peers(everyone.size());
    parts_.addresses.resize(everyone.size());
    for (const PeerInfo& each : everyone) {
      if (host_map.same_host(each.rank, rank_)) continue;
      const auto index = static_cast<std::size_t>(each.rank);
      const ContextImpl::Acquaintance known = context_.add_peer(each, secret_);
      peers[index] = known.peer;
      parts_.addresses[index] = {known.address, each.group_id};
    }
    return peers;
  }

  ContextImpl& context_;
  Store& store_;
  std::string secret_;
  int rank_;
  int size_;
  std::uint32_t first_sequence_;
  std::uint64_t cores_digest_ = 0;
  int sharing_ = 0;
  CommunicatorImpl::Parts parts_;
};

}  // namespace

std::shared_ptr<Communicator> Communicator::create(std::shared_ptr<Context> context, Store& store,
                                                   int rank, int size, Options options) {
  auto impl = std::static_pointer_cast<ContextImpl>(std::move(context));
  impl->require_usable();
  if (size < 1 || rank < 0 || rank >= size)
    throw Error(Errc::invalid_argument,
                formatted("group {}: rank {} of {} makes no sense", options.name, rank, size));
  RendezvousOptions rendezvous_options{
      .store = &store,
      .group = options.name,
      .rank = rank,
      .size = size,
      .timeout = options.timeout,
      .deadline = deadline_after(options.timeout),
      .offer_addresses = [&] { return impl->offer_addresses(store.host()); },
      .poll_interrupt = impl->poll_interrupt()};
  // A rank alone leaves the store alone: torch gives groups of one rank each the same keys.
  rendezvous_options.secret =
      size == 1 ? to_hex(random_digest())
                : agree_on_secret(rendezvous_options, impl->settings().secret_file);
  GroupBuilder builder(*impl, store, rendezvous_options.secret, rank, size, options);
  rendezvous_options.make_peer_info = [&](const std::string& address) {
    return builder.make_peer_info(address);
  };
  rendezvous_options.accept = [&](const Roster& roster) { builder.accept(roster); };
  try {
    rendezvous(rendezvous_options, impl->arena().memory()->fd(), impl->process_fd());
  } catch (...) {
    if (size > 1) remove_failed_rendezvous_keys(store, rank);
    throw;
  }
  const CommunicatorImpl::Parts parts = builder.take_parts();
  impl->make_workers(parts.group->rank(), parts.group->size(), builder.sharing());
  auto communicator = std::make_shared<CommunicatorImpl>(impl, parts, std::move(options));
  impl->remember(communicator);
  return communicator;
}

CommunicatorImpl::CommunicatorImpl(std::shared_ptr<ContextImpl> context, const Parts& parts,
                                   Options options)
    : context_(std::move(context)),
      options_(std::move(options)),
      rank_(parts.members->rank()),
      size_(parts.members->size()),
      group_(parts.group),
      members_(parts.members),
      addresses_(parts.addresses),
      board_(std::make_unique<shm::ShmBoard>(*group_, context_->heap(), name_of_algorithm,
                                             context_->poll_interrupt(), context_->backoff())),
      queue_(std::make_shared<OperationQueue>(context_->thread_pool(), options_.name,
                                              static_cast<Executor&>(*this),
                                              context_->poll_interrupt())),
      p2p_(std::make_shared<P2p>(
          members_, make_ofi_p2p(parts), context_->settings().eager_bytes, context_->progress(),
          [thread_pool = &context_->thread_pool()](std::function<void()> job) {
            thread_pool->submit(std::move(job));
          },
          context_->poll_interrupt(), context_->backoff())) {
  if (members_->over_several_hosts()) connect_hosts(parts);
  context_->progress().add(p2p_);
}

void CommunicatorImpl::connect_hosts(const Parts& parts) {
  ofi::Network& network = context_->network();
  channel_ = std::make_unique<ofi::OfiChannel>(
      network, *members_,
      ofi::OfiChannel::Options{parts.addresses, parts.group_id, name_of_algorithm,
                               context_->poll_interrupt()});
  board_->set_poll_hook([&network] { network.progress(); });
}

std::unique_ptr<ofi::OfiP2p> CommunicatorImpl::make_ofi_p2p(const Parts& parts) const {
  if (!parts.members->over_several_hosts()) return nullptr;
  return std::make_unique<ofi::OfiP2p>(context_->network(), *parts.members, parts.addresses,
                                       parts.group_id);
}

CommunicatorImpl::~CommunicatorImpl() { close(); }

void CommunicatorImpl::validate_here(const Operation& operation) const {
  validate(operation, {rank_, size_, name(), group_->layout().chunk_bytes});
}

void CommunicatorImpl::require_open() const {
  context_->require_usable();
  if (closed_.load(std::memory_order_relaxed))
    throw Error(Errc::aborted, formatted("group {} is closed", name()));
}

void CommunicatorImpl::check_alive() const {
  if (group_->failed())
    if (const std::exception_ptr problem = error()) std::rethrow_exception(problem);
}

Milliseconds CommunicatorImpl::effective(Milliseconds timeout) const {
  return timeout.count() > 0 ? timeout : options_.timeout;
}

void CommunicatorImpl::run(const Operation& operation, const CallOptions& options) {
  if (!try_run(operation, options.timeout)) await(start(operation, options));
}

bool CommunicatorImpl::try_run(const Operation& operation, Milliseconds timeout) {
  if (is_point_to_point(operation.op)) return false;
  require_open();
  validate_here(operation);
  check_alive();
  return queue_->try_run(operation, effective(timeout));
}

std::shared_ptr<Work> CommunicatorImpl::start(const Operation& operation, CallOptions options) {
  require_open();
  validate_here(operation);
  check_alive();
  options.timeout = effective(options.timeout);
  if (is_point_to_point(operation.op)) return p2p_->start(operation, std::move(options));
  return queue_->start(operation, std::move(options));
}

void CommunicatorImpl::run(OperationSequence sequence, const CallOptions& options) {
  require_open();
  check_alive();
  if (!queue_->try_run(sequence, effective(options.timeout)))
    await(start(std::move(sequence), options));
}

/// If the wait ends before the operation does, nothing may touch the caller's memory any more.
void CommunicatorImpl::await(const std::shared_ptr<Work>& work) {
  std::exception_ptr problem;
  try {
    return work->wait();
  } catch (...) {
    if (work->done() || work->cancel()) throw;
    problem = std::current_exception();
  }
  const Error reason = members_->fail(Error(
      Errc::aborted, formatted("rank {} of group {} was interrupted", rank_, name()), {rank_}));
  if (!queue_->withdraw(*work, reason))
    while (!work->done()) std::this_thread::sleep_for(Milliseconds(1));
  std::rethrow_exception(problem);
}

std::shared_ptr<Work> CommunicatorImpl::start(OperationSequence sequence, CallOptions options) {
  require_open();
  check_alive();
  options.timeout = effective(options.timeout);
  return queue_->start(sequence, std::move(options));
}

OpRecord CommunicatorImpl::record_of(const Operation& operation, const Algorithm& chosen) const {
  OpRecord record;
  record.op = operation.op;
  record.dtype = operation.dtype;
  record.reduction = operation.reduction.op;
  record.factor = operation.reduction.factor;
  record.algorithm = index_of(chosen);
  record.root = operation.root;
  record.count = shared_count(operation);
  record.counts_hash = hash_of_counts(operation);
  record.whole_count = operation.whole_count;
  record.piece = operation.piece;
  // Of a reduce_scatter one rank's elements are counted.
  const int parts = record.op == Op::reduce_scatter ? size_ : 1;
  const std::size_t elements = record.count * static_cast<std::size_t>(parts);
  record.wire_format = wire_format_of(operation, elements, context_->settings().wire_format);
  return record;
}

void CommunicatorImpl::execute(const Operation& operation, Milliseconds timeout) {
  execute_by(std::nullopt, operation, timeout);
}

void CommunicatorImpl::execute_by(std::optional<Deadline> deadline, const Operation& operation,
                                  Milliseconds timeout) {
  if (group_->failed()) throw members_->fail(group_->failure());
  const CollectiveTask call(operation, context_->workers());
  const Algorithm& chosen = context_->algorithms().select(
      operation.op, shared_count(operation) * size_of(operation.dtype), size_, operation.dtype,
      channel_ != nullptr);
  try {
    board_->begin(record_of(operation, chosen), deadline, timeout);
    channel_ ? run_over_hosts(chosen, call, deadline, timeout) : chosen.run(*board_, call);
    board_->end();
  } catch (const Error& error) {
    const Error reason = members_->fail(error);
    board_->fail();
    throw reason;
  } catch (...) {
    members_->fail(Error(Errc::aborted,
                         formatted("rank {} was interrupted in {}", rank_, board_->operation()),
                         {rank_}));
    board_->fail();
    throw;
  }
}

void CommunicatorImpl::run_over_hosts(const Algorithm& chosen, const CollectiveTask& call,
                                      std::optional<Deadline> deadline, Milliseconds timeout) {
  channel_->begin(board_->record(), deadline, timeout);
  chosen.run_over_hosts(*board_, *channel_, call);
  channel_->end();
  if (channel_->has_outstanding()) context_->progress().notify();  // nobody attends to it any more
}

void CommunicatorImpl::execute(const OperationSequence& sequence, Milliseconds timeout) {
  const Deadline deadline = deadline_after(timeout);
  const auto run = [&](const Operation& operation) {
    validate_here(operation);
    if (is_point_to_point(operation.op))
      throw Error(Errc::invalid_argument,
                  formatted("a sequence of group {} may run collectives only", name()));
    execute_by(deadline, operation, timeout);
  };
  try {
    sequence.body(run);
  } catch (const Error& error) {
    members_->fail(error);  // the other ranks wait for the rest of the sequence
    throw;
  } catch (const std::exception& error) {
    members_->fail(Error(Errc::aborted,
                         formatted("{} of group {} failed on rank {}: {}", sequence.name, name(),
                                   rank_, error.what()),
                         {rank_}));
    throw;
  }
}

std::exception_ptr CommunicatorImpl::error() const noexcept {
  if (context_->forked())
    return std::make_exception_ptr(Error(Errc::aborted, "this process was forked from a rank"));
  const std::lock_guard lock(mutex_);
  if (left_) return final_error_;
  return group_->failed() ? std::make_exception_ptr(group_->failure()) : nullptr;
}

void CommunicatorImpl::check_peers(const std::string& operation) const {
  if (const std::exception_ptr problem = error()) std::rethrow_exception(problem);
  for (int rank = 0; rank < size_; ++rank)
    if (rank != rank_ && members_->state_of(rank) == PeerState::died)
      throw members_->peer_lost_error(rank, operation);
}

void CommunicatorImpl::abort(const std::string& reason) noexcept {
  if (context_->forked()) return;
  const std::lock_guard lock(mutex_);
  if (left_) return;
  members_->fail(Error(Errc::aborted,
                       formatted("rank {} aborted group {}: {}", rank_, name(), reason), {rank_}));
}

void CommunicatorImpl::leave() noexcept {
  if (!queue_->is_idle() || p2p_->has_outstanding()) abort("it left with operations under way");
  close();
}

void CommunicatorImpl::close() noexcept {
  if (context_->forked()) return;
  // A signal handler, say: it cannot wait for the operation that it interrupts.
  if (queue_->is_run_by_this_thread()) return abort("it was closed in the middle of an operation");
  if (closed_.exchange(true)) return;
  queue_->close();
  p2p_->close();
  if (channel_) channel_->close(deadline_after(kLastWords));
  const Notice departure_notice = members_->leave();
  if (channel_) context_->record_departure(departure_notice);
  const std::lock_guard lock(mutex_);
  if (group_->failed()) final_error_ = std::make_exception_ptr(group_->failure());
  left_ = true;
  group_->close();
  context_->retire(group_);
}

/// What a rank says when a group is split; members are ordered by (key, rank).
struct CommunicatorImpl::SplitRequest {
  int color, key, rank, unused;
  std::uint64_t uid;  // for the new group, if this rank becomes its first
};

/// The members have met already; they only need to know where each one's new region lies and what
/// it calls the group.
struct CommunicatorImpl::GroupAddress {
  std::uint64_t region_offset = 0;
  std::uint64_t group_id = 0;
};

std::vector<CommunicatorImpl::SplitRequest> CommunicatorImpl::exchange_split_requests(int color,
                                                                                      int key) {
  std::vector<SplitRequest> split_requests(static_cast<std::size_t>(size_));
  const SplitRequest own{color, key, rank_, 0, uid_from(random_digest())};
  run(allgather(&own, split_requests.data(), sizeof own, DType::uint8));
  std::erase_if(split_requests,
                [&](const SplitRequest& request) { return request.color != color; });
  std::ranges::sort(split_requests, {},
                    [](const SplitRequest& w) { return std::tuple(w.key, w.rank); });
  return split_requests;
}

std::shared_ptr<Communicator> CommunicatorImpl::split(int color, int key, Options options) {
  const std::vector<SplitRequest> split_requests = exchange_split_requests(color, key);
  Parts parts;
  GroupAddress address;
  if (color >= 0) {
    try {
      parts.group = std::make_shared<shm::Group>(
          context_->arena(),
          shm::Group::Identity{options.name, split_requests.front().uid, options.first_sequence},
          shm::RegionLayout::of(static_cast<int>(split_requests.size()),
                                group_->layout().chunk_bytes));
    } catch (const Error& error) {
      throw members_->fail(error);  // the others would wait for this rank
    }
    const auto is_elsewhere = [&](const SplitRequest& request) {
      return !members_->is_local(request.rank);
    };
    if (std::ranges::any_of(split_requests, is_elsewhere))
      parts.group_id = context_->network().allocate_group_id();
    address = {parts.group->region_offset(), parts.group_id};
  }
  std::vector<GroupAddress> addresses(static_cast<std::size_t>(size_));
  run(allgather(&address, addresses.data(), sizeof address, DType::uint8));
  if (!parts.group) return nullptr;
  set_members(parts, split_requests, addresses);
  auto communicator = std::make_shared<CommunicatorImpl>(context_, parts, std::move(options));
  context_->remember(communicator);
  return communicator;
}

void CommunicatorImpl::set_members(Parts& parts, const std::vector<SplitRequest>& split_requests,
                                   const std::vector<GroupAddress>& addresses) const {
  std::vector<shm::Member> here;
  std::vector<int> global_ranks;
  std::vector<int> hosts;
  Members::Peers peers(split_requests.size());
  parts.addresses.resize(split_requests.size());
  const HostMap& host_map = members_->host_map();
  for (std::size_t number = 0; number < split_requests.size(); ++number) {
    const int rank = split_requests[number].rank;
    const GroupAddress& address = addresses[static_cast<std::size_t>(rank)];
    hosts.push_back(host_map.host_of(rank));
    if (members_->is_local(rank)) {
      here.emplace_back(group_->peer_handle(host_map.local_rank(rank)), address.region_offset);
      global_ranks.push_back(static_cast<int>(number));
    } else {
      peers[number] = members_->peer(rank);
      parts.addresses[number] = {addresses_[static_cast<std::size_t>(rank)].peer,
                                 static_cast<std::uint32_t>(address.group_id)};
    }
  }
  const auto own =
      std::ranges::find(split_requests, rank_, &SplitRequest::rank) - split_requests.begin();
  parts.group->set_members(std::move(here), std::move(global_ranks), static_cast<int>(own));
  add_members(*context_, parts, HostMap(hosts), peers);
}

}  // namespace tccl
