#include "rendezvous/host_discovery.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <sstream>

#include "base/crypto.h"
#include "base/system_error.h"
#include "rendezvous/init_errors.h"
#include "rendezvous/join_record.h"

namespace tccl {
namespace {

constexpr const char* kLeadersKey = "leaders";
constexpr const char* kFailureKey = "failure";
constexpr const char* kLeaderRound = "leader";

HostLeaders read_host_leaders(const StoreClient& client, const RendezvousOptions& options) {
  std::istringstream text(client.read(client.key(kLeadersKey)));
  HostLeaders leaders;
  for (int leader = 0; text >> leader;) leaders.push_back(leader);
  if (leaders.size() != static_cast<std::size_t>(options.size))
    throw init_error(options.group, Errc::mismatch,
                     "the ranks were given different sizes of the group");
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

void publish_host_leader(const StoreClient& client, const RendezvousOptions& options,
                         int leader_rank) {
  const std::vector<std::string> leaders =
      store_gather(client, kLeaderRound, options.rank, options.size, std::to_string(leader_rank));
  if (options.rank != 0) return;
  std::string text;
  for (const std::string& leader : leaders) text += leader + " ";
  client.store.set(client.key(kLeadersKey), text);
}

void remove_host_leaders(const StoreClient& client) noexcept {
  remove_key(client.store, client.key(kLeadersKey));
}

void throw_if_failure_published(const StoreClient& client) {
  std::string text;
  try {
    text = client.store.get(client.key(kFailureKey), std::chrono::milliseconds(0));
  } catch (const Error&) {
    return;  // no such key
  }
  std::string_view bytes(text);
  throw_if_failed(cut_packet<Status>(bytes));
}

void publish_failure(const StoreClient& client, const Status& status) {
  client.store.set(client.key(kFailureKey), as_bytes(status));
}

void try_publish_failure(const RendezvousOptions& options, const Status& status) noexcept {
  try {
    publish_failure(store_client_for(options, {}), status);
  } catch (const std::exception&) {
    // See the header.
  }
}

HostDiscovery::HostDiscovery(const RendezvousOptions& options)
    : done_event_(open_event()), thread_([this, &options] { run(options); }) {}

HostDiscovery::~HostDiscovery() {
  stopping_.store(true, std::memory_order_relaxed);  // read by the thread's polls; join() orders
  if (thread_.joinable()) thread_.join();
}

HostLeaders HostDiscovery::result() {
  thread_.join();
  if (error_) std::rethrow_exception(error_);
  return leaders_;
}

void HostDiscovery::run(const RendezvousOptions& options) {
  try {
    WaitingMark waiting(*options.store, options.rank);
    StoreClient client = store_client_for(options, {});
    client.on_poll = [this, &client, &waiting] {
      if (stopping_.load(std::memory_order_relaxed)) throw Error(Errc::aborted, "stopped");
      waiting.set();
      throw_if_failure_published(client);
    };
    publish_host_leader(client, options, options.rank);
    leaders_ = read_host_leaders(client, options);
  } catch (...) {
    error_ = std::current_exception();
  }
  done_.store(true, std::memory_order_release);  // pairs with is_done()
  const std::uint64_t one = 1;
  static_cast<void>(!::write(done_event_.get(), &one, sizeof one));
}

}  // namespace tccl
