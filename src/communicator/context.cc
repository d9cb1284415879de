#include "communicator/context.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "base/format.h"
#include "communicator/communicator_impl.h"
#include "tccl/error.h"

namespace tccl {
namespace {

/// An invalid descriptor where the kernel has none: then the mutex word is the only witness.
Fd open_own_pidfd() { return Fd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))); }

}  // namespace

Context::~Context() = default;

std::shared_ptr<Context> Context::create(Options options) {
  return std::make_shared<ContextImpl>(std::move(options));
}

ContextImpl::ContextImpl(Options options)
    : options_(std::move(options)),
      settings_(settings_from_environment()),
      algorithms_(settings_),
      arena_(std::make_unique<shm::Arena>()),
      self_(std::make_shared<Peer>(arena_->memory(), open_own_pidfd(), host_name(), ::getpid())),
      drivers_(std::make_unique<Drivers>()),
      progress_(std::make_unique<Progress>()) {
  auto* life = new (arena_->memory()->base()) LifeSign();
  life->token = random_digest();
  monitor_ = std::make_unique<Monitor>(*life, [this] { reclaim_retired(); });
}

ContextImpl::~ContextImpl() { close(); }

LifeSign& ContextImpl::life() const {
  return *reinterpret_cast<LifeSign*>(arena_->memory()->base());
}

void ContextImpl::close() noexcept {
  if (forked() || closed_.exchange(true)) return;
  std::vector<std::weak_ptr<CommunicatorImpl>> communicators;
  {
    const std::lock_guard lock(mutex_);
    communicators.swap(communicators_);
  }
  for (const auto& weak : communicators) {
    if (const auto communicator = weak.lock()) {
      communicator->abort("its context was closed");
      communicator->close();
    }
  }
  progress_->stop();
  drivers_->stop();
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
  std::strncpy(own.host, host_name().c_str(), sizeof own.host - 1);
  return own;
}

std::shared_ptr<Peer> ContextImpl::acquaint(const Attendee& attendee) {
  const Introduction& who = attendee.introduction;
  if (who.memory_id == self_->id()) return self_;
  const std::lock_guard lock(mutex_);
  if (auto known = peers_[who.memory_id].lock()) return known;
  auto memory = SharedMemory::open(attendee.memory, who.memory_bytes, who.memory_id);
  if (!same_digest(reinterpret_cast<LifeSign*>(memory->base())->token, who.token))
    throw Error(Errc::system,
                formatted("the memory of rank {} (host {}, pid {}) is not what it "
                          "announced",
                          who.rank, who.host, who.pid),
                {who.rank});
  Fd pidfd(attendee.process ? ::dup(attendee.process.get()) : -1);
  auto peer = std::make_shared<Peer>(std::move(memory), std::move(pidfd), who.host, who.pid);
  monitor_->watch(peer);
  peers_[who.memory_id] = peer;
  return peer;
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
  monitor_->drop_in_child();
  static_cast<void>(monitor_.release());
  static_cast<void>(progress_.release());
  static_cast<void>(drivers_.release());
  // Keep nothing of the job open: a data-loader worker may outlive its rank.
  arena_->memory()->drop_in_child();
  self_->drop_in_child();
  for (auto& [id, weak] : peers_)
    if (const auto peer = weak.lock()) peer->drop_in_child();
}

}  // namespace tccl
