#include "communicator/context_impl.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/cpu_set.h"
#include "base/format.h"
#include "base/log.h"
#include "base/system_error.h"
#include "communicator/communicator_impl.h"
#include "communicator/environment_report.h"
#include "operation/op_record.h"
#include "planner/plan_workers.h"
#include "rendezvous/interface_preference.h"
#include "rendezvous/interfaces.h"
#include "tccl/error.h"

namespace tccl {
namespace {

/// Invalid on kernels without pidfd: then only the robust mutex tells of a death.
Fd open_own_pidfd() {
  Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!fd && (errno == EMFILE || errno == ENFILE)) throw_system_error("pidfd_open");
  return fd;
}

std::uint64_t digest_of(const std::vector<int>& cpus) {
  std::uint64_t digest = 1;
  for (const int cpu : cpus) digest = mix(digest, static_cast<std::uint64_t>(cpu));
  return digest;
}

}  // namespace

Context::~Context() = default;

std::shared_ptr<Context> Context::create(Options options) {
  return std::make_shared<ContextImpl>(std::move(options));
}

ContextImpl::ContextImpl(Options options)
    : options_(std::move(options)),
      settings_(parse_environment()),
      algorithms_(settings_),
      cpus_(cpus_of_this_thread()),
      cpu_quota_(cpu_quota()),
      arena_(std::make_shared<shm::Arena>(settings_.shared_bytes)),
      heap_(std::make_shared<shm::TensorHeap>(arena_)),
      self_(std::make_shared<LocalProcess>(arena_->memory(), host_name(), ::getpid())),
      pidfd_(open_own_pidfd()),
      thread_pool_(std::make_unique<ThreadPool>()),
      inbox_(std::make_unique<NoticeInbox>()) {
  set_log_level(settings_.log_level);
  arena_->set_on_exhausted([heap = std::weak_ptr(heap_)] {
    if (const auto alive = heap.lock()) alive->free_cache();
  });
  auto* page = new (arena_->memory()->base()) ProcessPage();
  page->token = random_bytes32();
  progress_thread_ = std::make_unique<ProgressThread>(
      std::shared_ptr<ProgressSignal>(arena_->memory(), &page->progress_signal));
  monitor_ = std::make_unique<Monitor>(*page, [this] { on_heartbeat(); });
  fork_hook_ = std::make_unique<ForkHook>(mutex_, [this] { close_in_child(); });
}

ContextImpl::~ContextImpl() { close(); }

ProcessPage& ContextImpl::process_page() const {
  return *reinterpret_cast<ProcessPage*>(arena_->memory()->base());
}

std::shared_ptr<void> ContextImpl::allocate(std::size_t bytes) {
  check_usable();
  return heap_->allocate(bytes);
}

void ContextImpl::close(std::chrono::milliseconds wait_for_operations) noexcept {
  if (forked()) return;
  // Before closed_ is set: callbacks of the last operations may start others.
  const Deadline deadline = deadline_after(wait_for_operations);
  for (const auto& communicator : open_communicators())
    communicator->wait_until_idle(time_left(deadline));
  if (closed_.exchange(true, std::memory_order_relaxed)) return;
  for (const auto& communicator : open_communicators()) communicator->depart();
  progress_thread_->stop();
  thread_pool_->stop();
  if (workers_) workers_->stop();
  if (network_) network_->close();
  monitor_->stop();
}

std::vector<std::shared_ptr<CommunicatorImpl>> ContextImpl::open_communicators() {
  std::vector<std::shared_ptr<CommunicatorImpl>> open;
  const std::lock_guard lock(mutex_);
  for (const auto& weak : communicators_)
    if (auto communicator = weak.lock()) open.push_back(std::move(communicator));
  return open;
}

void ContextImpl::check_usable() const {
  if (forked())
    throw Error(Errc::aborted, "this process was forked from a rank and cannot use its groups");
  if (closed_.load(std::memory_order_relaxed)) throw Error(Errc::aborted, "the context is closed");
}

PeerInfo ContextImpl::peer_info() const {
  PeerInfo own;
  own.pid = ::getpid();
  own.memory_id = arena_->memory()->id();
  own.token = process_page().token;
  own.memory_bytes = arena_->memory()->bytes();
  own.chunk_bytes = settings_.chunk_bytes;
  own.eager_bytes = settings_.eager_bytes;
  own.staging_bytes = settings_.staging_bytes;
  own.cpus_digest = digest_of(cpus_);
  own.limiting_cgroup = cpu_quota_.cgroup;
  own.wire_format = static_cast<std::uint32_t>(settings_.wire_format);
  std::strncpy(own.host, host_name().c_str(), sizeof own.host - 1);
  return own;
}

std::shared_ptr<LocalProcess> ContextImpl::add_local_process(const LocalPeer& local_peer) {
  const PeerInfo& info = local_peer.peer_info;
  if (info.memory_id == self_->id()) return self_;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(peers_, [](const auto& known) { return known.second.expired(); });
    if (const auto known = peers_.find(info.memory_id); known != peers_.end())
      if (auto peer = known->second.lock()) return peer;
  }
  auto memory = SharedMemory::open(local_peer.memory, info.memory_bytes, info.memory_id);
  if (!same_bytes(reinterpret_cast<ProcessPage*>(memory->base())->token, info.token))
    throw Error(Errc::system,
                formatted("the shared memory of {} has an unexpected token", describe(info)),
                {info.rank});
  Fd process = local_peer.process.duplicate();
  if (local_peer.process && !process) throw_system_error("dup(pidfd)");
  auto peer = std::make_shared<LocalProcess>(std::move(memory), info.host, info.pid);
  monitor_->watch_process(peer, std::move(process));
  const std::lock_guard lock(mutex_);
  peers_[info.memory_id] = peer;
  return peer;
}

AddressOffer ContextImpl::offer_addresses(const std::string& store_host) {
  const std::lock_guard lock(network_mutex_);
  AddressOffer offer;
  if (network_)
    offer.usable = {network_->address()};
  else
    offer = own_addresses(store_host, effective_filter(settings_));
  offer.host = host_name();
  return offer;
}

void ContextImpl::open_network(const std::string& address) {
  const std::lock_guard lock(network_mutex_);
  if (network_) return;
  // Two connections to each process of another host: the usual limit, 1024, is too low for a
  // thousand ranks.
  raise_descriptor_limit();
  RemoteProcess::Identity self;
  self.id = arena_->memory()->id();
  self.host = host_name();
  self.pid = ::getpid();
  network_ = std::make_unique<ofi::Network>(
      *monitor_,
      ofi::Network::Options{&settings_, address, self,
                            [this](const std::shared_ptr<RemoteProcess>& from,
                                   const Notice& notice) { handle_notice(from, notice); }});
  progress_thread_->set_progress_network([network = network_.get()] {
    network->progress();
    return network->has_sends_in_flight();
  });
}

void ContextImpl::add_network_info(PeerInfo& own, const std::string& address,
                                   std::uint64_t group_uid) {
  open_network(address);
  ofi::Network& network = *network_;
  own.group_tag = network.allocate_group_tag(group_uid);
  own.control_port = network.control().port();
  const ofi::Endpoint::RawAddress& fabric = network.endpoint().address();
  if (fabric.size() > sizeof own.endpoint_name)
    throw Error(Errc::internal,
                formatted("the libfabric address has {} bytes; at most {} are supported",
                          fabric.size(), sizeof own.endpoint_name));
  own.endpoint_name_bytes = static_cast<std::uint16_t>(fabric.size());
  std::memcpy(own.endpoint_name, fabric.data(), fabric.size());
  std::strncpy(own.control_address, network.address().c_str(), sizeof own.control_address - 1);
  if (const char* limit = std::getenv("FI_OFI_RXM_EAGER_LIMIT"))
    std::strncpy(own.rxm_eager_limit, limit, sizeof own.rxm_eager_limit - 1);
  std::strncpy(own.provider, network.endpoint().provider().c_str(), sizeof own.provider - 1);
}

ContextImpl::RemoteAddress ContextImpl::add_remote_process(const PeerInfo& info,
                                                           const std::string& secret) {
  RemoteProcess::Identity identity;
  identity.id = info.memory_id;
  identity.host = info.host;
  identity.pid = info.pid;
  identity.address = info.control_address;
  identity.port = info.control_port;
  const std::lock_guard lock(network_mutex_);
  RemoteAddress known{network_->control().add_peer(identity, secret), 0};
  const auto found = fi_addrs_.find(info.memory_id);
  if (found != fi_addrs_.end()) {
    known.fi_addr = found->second;
    return known;
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(info.endpoint_name);
  known.fi_addr = network_->endpoint().add_peer({bytes, bytes + info.endpoint_name_bytes});
  fi_addrs_[info.memory_id] = known.fi_addr;
  return known;
}

std::shared_ptr<const void> ContextImpl::accept_secret(const std::string& secret) {
  network_->control().add_secret(secret);
  return {this, [this, secret](const void*) {
            if (!forked()) network_->control().retire_secret(secret);
          }};
}

/// On the monitor thread.
void ContextImpl::handle_notice(const std::shared_ptr<RemoteProcess>& from,
                                const Notice& notice) noexcept {
  const auto kind = static_cast<GroupNotice>(notice.kind);
  if (kind == GroupNotice::wake) return self_->wake_progress_thread();
  if (const auto membership = inbox_->find_group(from, notice))
    return membership->handle_notice(*from, notice);
  if (kind != GroupNotice::subscribe) return;
  if (const auto departure = inbox_->departure_of(notice.group_uid))
    network_->control().send_notice(from, *departure);
}

void ContextImpl::on_heartbeat() noexcept {
  run_deferred_frees();
  try {
    for (const auto& membership : inbox_->groups()) {
      membership->note_lost_ranks();
      membership->propagate_failure();
    }
  } catch (const std::bad_alloc&) {
    // With the next heartbeat, if there is memory then.
  }
}

void ContextImpl::on_group_built(const Membership& membership, const CpuSharing& sharing) {
  const int rank = membership.rank();
  const HostMap& host_map = membership.host_map();
  const LocalPlacement placement{host_map.local_rank(rank),
                                 host_map.local_size(host_map.host_of(rank)), sharing, cpus_,
                                 cpu_quota_};
  WorkerPoolOptions plan = plan_workers(settings_, placement);
  plan.rank = rank;
  plan.group = membership.name();
  {
    const std::lock_guard lock(mutex_);
    if (cpus_per_rank(cpus_, cpu_quota_, sharing) < 1)
      is_oversubscribed_.store(true, std::memory_order_relaxed);
    if (workers_) return;
    workers_ = std::make_unique<WorkerPool>(plan);
  }
  // Without the lock, for which the monitor thread waits: writing to stderr may block.
  report_environment(settings_, placement, membership,
                     membership.over_several_hosts() ? network_->endpoint().provider() : "",
                     /*notices_deaths=*/pidfd_ || has_robust_mutexes());
  if (is_logged(LogLevel::debug))
    log(LogLevel::debug, {.rank = rank, .group = membership.name()},
        formatted("host {}, pid {}; {} workers on CPUs {}{}", host_name(), ::getpid(), plan.count,
                  cpus_text(plan.cpus.empty() ? cpus_ : plan.cpus),
                  cpu_quota_.is_limited()
                      ? formatted("; a cgroup limits it to {:.2f} CPUs", cpu_quota_.cpus)
                      : ""));
}

BackoffPolicy ContextImpl::backoff() const noexcept {
  return is_oversubscribed_.load(std::memory_order_relaxed) ? kBackoffOversubscribed
                                                            : kBackoffDedicated;
}

void ContextImpl::add_communicator(const std::shared_ptr<CommunicatorImpl>& communicator) {
  const std::lock_guard lock(mutex_);
  std::erase_if(communicators_, [](const auto& known) { return known.expired(); });
  communicators_.push_back(communicator);
}

void ContextImpl::defer_free(std::shared_ptr<shm::LocalGroup> group) noexcept {
  if (group->try_free()) return;
  const std::lock_guard lock(mutex_);
  try {
    deferred_frees_.push_back(std::move(group));
  } catch (const std::bad_alloc&) {
    // Its shared memory stays until the process ends.
  }
}

void ContextImpl::run_deferred_frees() noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(deferred_frees_, [](const auto& group) { return group->try_free(); });
}

void ContextImpl::close_in_child() noexcept {
  forked_.store(true, std::memory_order_relaxed);
  // The child has none of the threads, and their locks may be held forever: leak their owners.
  if (network_) network_->close_in_child();
  static_cast<void>(network_.release());
  static_cast<void>(monitor_.release());
  static_cast<void>(inbox_.release());
  static_cast<void>(progress_thread_.release());
  static_cast<void>(thread_pool_.release());
  static_cast<void>(workers_.release());
  // Close the descriptors that all ranks share: a data-loader worker may outlive its rank.
  arena_->memory()->close_in_child();
  pidfd_.reset();
}

}  // namespace tccl
