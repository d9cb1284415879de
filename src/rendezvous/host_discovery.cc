#include "rendezvous/host_discovery.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <sstream>

#include "base/crypto.h"
#include "base/system_error.h"

namespace tccl {
namespace {

constexpr const char* kHostLeaders = "leaders";
constexpr const char* kFailed = "failed";

HostLeaders read_host_leaders(const StoreClient& store_client, int size) {
  std::istringstream text(store_client.read(store_client.key(kHostLeaders)));
  HostLeaders leaders;
  for (int host = 0; text >> host;) leaders.push_back(host);
  if (leaders.size() != static_cast<std::size_t>(size))
    throw Error(Errc::mismatch, "the ranks disagree about the size of the group");
  return leaders;
}

Fd open_event() {
  Fd event(::eventfd(0, EFD_CLOEXEC));
  if (!event) throw_system_error("eventfd");
  return event;
}

}  // namespace

StoreClient store_client_for(const RendezvousOptions& options, std::function<void()> on_poll) {
  const Digest digest = hmac_sha256(options.secret, "keys");
  return {*options.store, to_hex(std::span(digest).first(8)), options.deadline, std::move(on_poll)};
}

void publish_host_leader(const StoreClient& store_client, const RendezvousOptions& options,
                         int host_rank) {
  const std::vector<std::string> all =
      store_gather(store_client, "place", options.rank, options.size, std::to_string(host_rank));
  if (options.rank != 0) return;
  std::string text;
  for (const std::string& place : all) text += place + " ";
  store_client.store.set(store_client.key(kHostLeaders), text);
}

void remove_host_leaders(const StoreClient& store_client) noexcept {
  remove_key(store_client.store, store_client.key(kHostLeaders));
}

void throw_if_failure_published(const StoreClient& store_client) {
  std::string text;
  try {
    text = store_client.store.get(store_client.key(kFailed), std::chrono::milliseconds(0));
  } catch (const Error&) {
    return;  // no such key
  }
  std::string_view bytes(text);
  throw_if_failed(cut_packet<Status>(bytes));
}

void publish_failure(const StoreClient& store_client, const Status& status) {
  store_client.store.set(store_client.key(kFailed), as_bytes(status));
}

HostDiscovery::HostDiscovery(const RendezvousOptions& options)
    : done_(open_event()), thread_([this, &options] { run(options); }) {}

HostDiscovery::~HostDiscovery() {
  stopping_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

HostLeaders HostDiscovery::result() {
  thread_.join();
  if (problem_) std::rethrow_exception(problem_);
  return leaders_;
}

void HostDiscovery::run(const RendezvousOptions& options) {
  try {
    StoreClient store_client = store_client_for(options, {});
    store_client.on_poll = [this, &store_client] {
      if (stopping_.load(std::memory_order_relaxed)) throw Error(Errc::aborted, "stopped");
      throw_if_failure_published(store_client);
    };
    publish_host_leader(store_client, options, options.rank);
    leaders_ = read_host_leaders(store_client, options.size);
  } catch (...) {
    problem_ = std::current_exception();
  }
  over_.store(true, std::memory_order_release);  // pairs with is_over()
  const std::uint64_t one = 1;
  static_cast<void>(!::write(done_.get(), &one, sizeof one));
}

}  // namespace tccl
