#include <algorithm>
#include <cstring>
#include <thread>
#include <tuple>

#include "base/format.h"
#include "base/op_kinds.h"
#include "communicator/communicator_impl.h"
#include "communicator/validate.h"
#include "tccl/error.h"

namespace tccl {

Communicator::~Communicator() = default;

namespace {

std::uint64_t uid_from(const Digest& digest) {
  std::uint64_t uid = 0;
  std::memcpy(&uid, digest.data(), sizeof uid);
  return uid | 1;  // never zero, which means "given back"
}

/// Counts that every rank must pass alike, as one number.
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

}  // namespace

std::shared_ptr<Communicator> Communicator::create(std::shared_ptr<Context> context, Store& store,
                                                   int rank, int size, Options options) {
  auto impl = std::static_pointer_cast<ContextImpl>(std::move(context));
  impl->require_usable();
  if (size < 1 || rank < 0 || rank >= size)
    throw Error(Errc::invalid_argument,
                formatted("group {}: rank {} of {} makes no sense", options.name, rank, size));
  const Deadline deadline = deadline_after(options.timeout);
  // A rank alone leaves the store alone: torch gives groups of one rank each the same keys.
  const std::string secret =
      size == 1 ? to_hex(random_digest()) : agree_on_secret(store, rank, deadline);
  const auto layout = shm::RegionLayout::of(size, impl->settings().chunk_bytes);
  auto group = std::make_shared<shm::Group>(
      impl->arena(),
      shm::Group::Identity{options.name, rank, size, uid_from(hmac_sha256(secret, "group")),
                           options.first_sequence},
      layout);
  Introduction self = impl->introduction();
  self.rank = rank;
  self.size = size;
  self.first_sequence = options.first_sequence;
  self.region_offset = group->region_offset();
  std::vector<shm::Member> members;
  int sharing = 0;
  const auto acquaint = [&](const std::vector<Attendee>& everyone) {
    for (const Attendee& attendee : everyone) {
      members.emplace_back(impl->acquaint(attendee), attendee.introduction.region_offset);
      sharing += attendee.introduction.cores_digest == self.cores_digest;
    }
    // Everyone is here and nobody has returned yet: the one moment at which a next group on this
    // store cannot meet the keys of this one.
    if (size > 1) forget_keys(store, rank);
  };
  try {
    meet({&store, options.name, secret, deadline, acquaint, impl->poll_interrupt()}, self,
         impl->arena().memory()->fd(), impl->process_fd());
  } catch (...) {
    if (size > 1) forget_failed_meeting(store, rank);
    throw;
  }
  group->set_members(std::move(members));
  impl->make_workers(rank, size, sharing);  // all ranks of a group are on this host
  auto communicator =
      std::make_shared<CommunicatorImpl>(impl, std::move(group), std::move(options));
  impl->remember(communicator);
  return communicator;
}

CommunicatorImpl::CommunicatorImpl(std::shared_ptr<ContextImpl> context,
                                   std::shared_ptr<shm::Group> group, Options options)
    : context_(std::move(context)),
      options_(std::move(options)),
      rank_(group->rank()),
      size_(group->size()),
      group_(std::move(group)),
      board_(std::make_unique<shm::ShmBoard>(
          *group_, context_->heap(), [](std::uint8_t index) { return algorithm(index).name; },
          context_->poll_interrupt(), context_->patience())),
      lane_(std::make_shared<Lane>(context_->drivers(), options_.name,
                                   static_cast<LaneExecutor&>(*this), context_->poll_interrupt())),
      p2p_(std::make_shared<P2p>(
          group_, context_->settings().eager_bytes, context_->progress(),
          [drivers = &context_->drivers()](std::function<void()> job) {
            drivers->submit(std::move(job));
          },
          context_->poll_interrupt(), context_->patience())) {
  context_->progress().add(p2p_);
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

void CommunicatorImpl::require_unharmed() const {
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
  require_unharmed();
  return lane_->try_run(operation, effective(timeout));
}

std::shared_ptr<Work> CommunicatorImpl::start(const Operation& operation, CallOptions options) {
  require_open();
  validate_here(operation);
  require_unharmed();
  options.timeout = effective(options.timeout);
  if (is_point_to_point(operation.op)) return p2p_->start(operation, std::move(options));
  return lane_->start(operation, std::move(options));
}

void CommunicatorImpl::run(Program program, const CallOptions& options) {
  require_open();
  require_unharmed();
  if (!lane_->try_run(program, effective(options.timeout)))
    await(start(std::move(program), options));
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
  const Error reason = group_->fail(Error(
      Errc::aborted, formatted("rank {} of group {} was interrupted", rank_, name()), {rank_}));
  if (!lane_->withdraw(*work, reason))
    while (!work->done()) std::this_thread::sleep_for(Milliseconds(1));
  std::rethrow_exception(problem);
}

std::shared_ptr<Work> CommunicatorImpl::start(Program program, CallOptions options) {
  require_open();
  require_unharmed();
  options.timeout = effective(options.timeout);
  return lane_->start(program, std::move(options));
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
  return record;
}

void CommunicatorImpl::execute(const Operation& operation, Milliseconds timeout) {
  execute_by(std::nullopt, operation, timeout);
}

void CommunicatorImpl::execute_by(std::optional<Deadline> deadline, const Operation& operation,
                                  Milliseconds timeout) {
  if (group_->failed()) throw group_->failure();
  const Call call(operation, context_->workers());
  const Algorithm& chosen = context_->algorithms().choose(
      operation.op, shared_count(operation) * size_of(operation.dtype), size_, operation.dtype);
  try {
    board_->begin(record_of(operation, chosen), deadline, timeout);
    chosen.run(*board_, call);
    board_->end();
  } catch (const Error& error) {
    const Error reason = group_->fail(error);
    board_->fail();
    throw reason;
  } catch (...) {
    group_->fail(Error(Errc::aborted,
                       formatted("rank {} was interrupted in {}", rank_, board_->operation()),
                       {rank_}));
    board_->fail();
    throw;
  }
}

void CommunicatorImpl::execute(const Program& program, Milliseconds timeout) {
  const Deadline deadline = deadline_after(timeout);
  const auto run = [&](const Operation& operation) {
    validate_here(operation);
    if (is_point_to_point(operation.op))
      throw Error(Errc::invalid_argument,
                  formatted("a program of group {} may run collectives only", name()));
    execute_by(deadline, operation, timeout);
  };
  try {
    program.body(run);
  } catch (const Error& error) {
    throw group_->fail(error);  // the other ranks wait for the rest of the program
  } catch (const std::exception& error) {
    group_->fail(Error(Errc::aborted,
                       formatted("{} of group {} failed on rank {}: {}", program.name, name(),
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

void CommunicatorImpl::abort(const std::string& reason) noexcept {
  if (context_->forked()) return;
  const std::lock_guard lock(mutex_);
  if (left_) return;
  group_->fail(Error(Errc::aborted,
                     formatted("rank {} aborted group {}: {}", rank_, name(), reason), {rank_}));
}

void CommunicatorImpl::leave() noexcept {
  if (!lane_->is_idle() || p2p_->has_outstanding()) abort("it left with operations under way");
  close();
}

void CommunicatorImpl::close() noexcept {
  if (context_->forked()) return;
  // A signal handler, say: it cannot wait for the operation that it interrupts.
  if (lane_->is_run_by_this_thread()) return abort("it was closed in the middle of an operation");
  if (closed_.exchange(true)) return;
  lane_->close();
  p2p_->close();
  const std::lock_guard lock(mutex_);
  if (group_->failed()) final_error_ = std::make_exception_ptr(group_->failure());
  left_ = true;
  group_->close();
  context_->retire(group_);
}

std::shared_ptr<Communicator> CommunicatorImpl::split(int colour, int key, Options options) {
  struct Wish {
    int colour, key, rank, unused;
    std::uint64_t uid;  // for the new group, if this rank becomes its first
  };
  std::vector<Wish> wishes(static_cast<std::size_t>(size_));
  const Wish own{colour, key, rank_, 0, uid_from(random_digest())};
  run(allgather(&own, wishes.data(), sizeof own, DType::uint8));
  std::erase_if(wishes, [&](const Wish& wish) { return wish.colour != colour; });
  std::ranges::sort(wishes, {}, [](const Wish& w) { return std::tuple(w.key, w.rank); });

  // The members have met already; they only need to know where each one's new region lies.
  std::shared_ptr<shm::Group> group;
  if (colour >= 0) {
    const auto rank = std::ranges::find(wishes, rank_, &Wish::rank) - wishes.begin();
    const auto size = static_cast<int>(wishes.size());
    try {
      group = std::make_shared<shm::Group>(
          context_->arena(),
          shm::Group::Identity{options.name, static_cast<int>(rank), size, wishes.front().uid,
                               options.first_sequence},
          shm::RegionLayout::of(size, group_->layout().chunk_bytes));
    } catch (const Error& error) {
      throw group_->fail(error);  // the others would wait for this rank
    }
  }
  const std::uint64_t offset = group ? group->region_offset() : 0;
  std::vector<std::uint64_t> offsets(static_cast<std::size_t>(size_));
  run(allgather(&offset, offsets.data(), 1, DType::uint64));
  if (!group) return nullptr;

  std::vector<shm::Member> members;
  for (const Wish& wish : wishes)
    members.emplace_back(group_->peer_handle(wish.rank),
                         offsets[static_cast<std::size_t>(wish.rank)]);
  group->set_members(std::move(members));
  auto communicator =
      std::make_shared<CommunicatorImpl>(context_, std::move(group), std::move(options));
  context_->remember(communicator);
  return communicator;
}

}  // namespace tccl
