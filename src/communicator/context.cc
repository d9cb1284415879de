#include "communicator/context.h"

#include <algorithm>

#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "base/cores.h"
#include "base/format.h"
#include "base/log.h"
#include "communicator/communicator_impl.h"
#include "communicator/plan_workers.h"
#include "tccl/error.h"
#include "transport/record.h"

namespace tccl {
namespace {

/// An invalid descriptor where the kernel has none: then the mutex word is the only witness.
Fd open_own_pidfd() { return Fd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))); }

std::uint64_t digest_of(const std::vector<int>& numbers) {
  std::uint64_t digest = 1;
  for (const int number : numbers) digest = mix(digest, static_cast<std::uint64_t>(number));
  return digest;
}

}  // namespace

Context::~Context() = default;

std::shared_ptr<Context> Context::create(Options options) {
  return std::make_shared<ContextImpl>(std::move(options));
}

ContextImpl::ContextImpl(Options options)
    : options_(std::move(options)),
      settings_(settings_from_environment()),
      algorithms_(settings_),
      cores_(cores_of_this_thread()),
      arena_(std::make_shared<shm::Arena>(settings_.shared_bytes)),
      heap_(std::make_shared<shm::Heap>(arena_)),
      self_(std::make_shared<Peer>(arena_->memory(), host_name(), ::getpid())),
      pidfd_(open_own_pidfd()),
      drivers_(std::make_unique<Drivers>()) {
  arena_->set_reserve([heap = std::weak_ptr(heap_)] {
    if (const auto alive = heap.lock()) alive->give_back_cache();
  });
  auto* life = new (arena_->memory()->base()) LifeSign();
  life->token = random_digest();
  progress_ = std::make_unique<Progress>(std::shared_ptr<Knocks>(arena_->memory(), &life->knocks));
  monitor_ = std::make_unique<Monitor>(*life, [this] { reclaim_retired(); });
  fork_hook_ = std::make_unique<ForkHook>(mutex_, [this] { drop_in_child(); });
}

ContextImpl::~ContextImpl() { close(); }

LifeSign& ContextImpl::life() const {
  return *reinterpret_cast<LifeSign*>(arena_->memory()->base());
}

std::shared_ptr<void> ContextImpl::allocate(std::size_t bytes) {
  require_usable();
  return heap_->allocate(bytes);
}

void ContextImpl::close() noexcept {
  if (forked() || closed_.exchange(true)) return;
  std::vector<std::weak_ptr<CommunicatorImpl>> communicators;
  {
    const std::lock_guard lock(mutex_);
    communicators.swap(communicators_);
  }
  for (const auto& weak : communicators) {
    if (const auto communicator = weak.lock()) communicator->leave();
  }
  progress_->stop();
  drivers_->stop();
  if (workers_) workers_->stop();
  monitor_->stop();
}

void ContextImpl::require_usable() const {
  if (forked())
    throw Error(Errc::aborted, "this process was forked from a rank and has no part in its groups");
  if (closed_.load(std::memory_order_relaxed)) throw Error(Errc::aborted, "the context is closed");
}

Introduction ContextImpl::introduction() const {
  Introduction own;
  own.pid = ::getpid();
  own.memory_id = arena_->memory()->id();
  own.token = life().token;
  own.memory_bytes = arena_->memory()->bytes();
  own.chunk_bytes = settings_.chunk_bytes;
  own.eager_bytes = settings_.eager_bytes;
  own.cores_digest = digest_of(cores_);
  std::strncpy(own.host, host_name().c_str(), sizeof own.host - 1);
  return own;
}

std::shared_ptr<Peer> ContextImpl::acquaint(const Attendee& attendee) {
  const Introduction& who = attendee.introduction;
  if (who.memory_id == self_->id()) return self_;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(peers_, [](const auto& known) { return known.second.expired(); });
    if (const auto known = peers_.find(who.memory_id); known != peers_.end())
      if (auto peer = known->second.lock()) return peer;
  }
  auto memory = SharedMemory::open(attendee.memory, who.memory_bytes, who.memory_id);
  if (!same_digest(reinterpret_cast<LifeSign*>(memory->base())->token, who.token))
    throw Error(Errc::system, formatted("the memory of {} is not what it announced", describe(who)),
                {who.rank});
  auto peer = std::make_shared<Peer>(std::move(memory), who.host, who.pid);
  monitor_->watch(peer, attendee.process.duplicate());
  const std::lock_guard lock(mutex_);
  peers_[who.memory_id] = peer;
  return peer;
}

void ContextImpl::make_workers(int local_rank, int local_ranks, int sharing) {
  const std::lock_guard lock(mutex_);
  most_sharing_.store(std::max(sharing, most_sharing_.load(std::memory_order_relaxed)),
                      std::memory_order_relaxed);
  if (workers_) return;
  const LocalPlace place{local_rank, local_ranks, sharing, cores_};
  static std::atomic<bool> warned{false};  // once per process, which may have several contexts
  const std::string problem = disagreement(settings_, place);
  if (!problem.empty() && !warned.exchange(true, std::memory_order_relaxed))
    log_warning(problem, local_rank);
  workers_ = std::make_unique<Workers>(plan_workers(settings_, place));
}

Patience ContextImpl::patience() const noexcept {
  const auto sharing = static_cast<std::size_t>(most_sharing_.load(std::memory_order_relaxed));
  return sharing > cores_.size() ? kCrowded : kPatient;
}

void ContextImpl::remember(const std::shared_ptr<CommunicatorImpl>& communicator) {
  const std::lock_guard lock(mutex_);
  std::erase_if(communicators_, [](const auto& known) { return known.expired(); });
  communicators_.push_back(communicator);
}

void ContextImpl::retire(std::shared_ptr<shm::Group> group) noexcept {
  if (group->try_reclaim()) return;
  const std::lock_guard lock(mutex_);
  retired_.push_back(std::move(group));
}

void ContextImpl::reclaim_retired() noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(retired_, [](const auto& group) { return group->try_reclaim(); });
}

void ContextImpl::drop_in_child() noexcept {
  forked_.store(true, std::memory_order_relaxed);
  // Threads do not exist here and their locks may be held for ever: leak what owns them.
  static_cast<void>(monitor_.release());
  static_cast<void>(progress_.release());
  static_cast<void>(drivers_.release());
  static_cast<void>(workers_.release());
  // Keep nothing of the job open: a data-loader worker may outlive its rank.
  arena_->memory()->drop_in_child();
  pidfd_.reset();
}

}  // namespace tccl
