#include "rendezvous/host_discovery.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <sstream>

#include "base/crypto.h"
#include "base/format.h"
#include "base/start_thread.h"
#include "base/system_error.h"
#include "rendezvous/init_errors.h"
#include "rendezvous/join_record.h"

namespace tccl {
namespace {

constexpr const char* kCoordinatorsKey = "coordinators";
constexpr const char* kFailureKey = "failure";
constexpr const char* kCoordinatorRound = "coordinator";

HostCoordinators read_host_coordinators(const StoreClient& client,
                                        const RendezvousOptions& options) {
  std::istringstream text(client.read(client.key(kCoordinatorsKey), 0));
  HostCoordinators coordinators;
  for (int coordinator = 0; text >> coordinator;) coordinators.push_back(coordinator);
  if (coordinators.size() != static_cast<std::size_t>(options.size))
    throw init_error(options.group, Errc::mismatch,
                     "the ranks were given different sizes of the group", {options.rank});
  return coordinators;
}

Fd open_event() {
  Fd event(::eventfd(0, EFD_CLOEXEC));
  if (!event) throw_system_error("eventfd");
  return event;
}

}  // namespace

StoreClient store_client_for(const RendezvousOptions& options,
                             std::function<void(int participant)> while_waiting) {
  const Bytes32 digest = hmac_sha256(options.secret, "keys");
  return {*options.store, to_hex(std::span(digest).first(8)), options.deadline,
          std::move(while_waiting), poll_interval_of(options.size)};
}

void gather_host_coordinators(const StoreClient& client, const RendezvousOptions& options,
                              int coordinator_rank) {
  const std::vector<std::string> coordinators = store_gather(
      client, kCoordinatorRound, options.rank, options.size, std::to_string(coordinator_rank));
  if (options.rank != 0) return;
  std::string text;
  for (const std::string& coordinator : coordinators) text += coordinator + " ";
  client.store.set(client.key(kCoordinatorsKey), text);
}

void remove_host_coordinators(const StoreClient& client) noexcept {
  remove_key(client.store, client.key(kCoordinatorsKey));
}

void throw_if_ended(const RendezvousOptions& options, int rank) {
  const JoinRecord record = read_join_record(store_client_for(options, {}), rank);
  if (record.identity.has_ended())
    throw ended_error(options, formatted("rank {} ({})", rank, record.process), rank);
  throw_if_known_to_have_ended(options, rank);
}

void throw_if_known_to_have_ended(const RendezvousOptions& options, int rank) {
  if (!options.lost_process) return;
  for (const int other : {rank, 0}) {
    const std::string process = options.lost_process(other);
    if (!process.empty()) throw ended_error(options, process, other);
  }
}

void throw_if_failure_published(const StoreClient& client) {
  std::string text;
  try {
    text = client.store.get(client.key(kFailureKey), std::chrono::milliseconds(0));
  } catch (const Error& error) {
    if (error.code() != Errc::timeout) throw;
    return;  // no such key
  }
  std::string_view bytes(text);
  throw_if_failed(cut_packet<Status>(bytes));
}

void try_publish_failure(const RendezvousOptions& options, const Status& status) noexcept {
  try {
    const StoreClient client = store_client_for(options, {});
    throw_if_failure_published(client);  // the first reason stays
    client.store.set(client.key(kFailureKey), as_bytes(status));
  } catch (...) {
    // The other ranks then fail at the timeout.
  }
}

HostDiscovery::HostDiscovery(const RendezvousOptions& options)
    : done_event_(open_event()),
      thread_(start_thread("the thread that discovers hosts", [this, &options] { run(options); })) {
}

HostDiscovery::~HostDiscovery() {
  stopping_.store(true, std::memory_order_relaxed);  // read by the thread's polls; join() orders
  if (thread_.joinable()) thread_.join();
}

HostCoordinators HostDiscovery::result() {
  thread_.join();
  if (error_) std::rethrow_exception(error_);
  return coordinators_;
}

void HostDiscovery::run(const RendezvousOptions& options) {
  try {
    StoreClient client = store_client_for(options, {});
    JoinRecordWriter join_record(client, options.rank);
    client.while_waiting = [this, &client, &join_record, &options](int rank) {
      if (stopping_.load(std::memory_order_relaxed)) throw Error(Errc::aborted, "stopped");
      join_record.write_waiting();
      throw_if_failure_published(client);
      throw_if_ended(options, rank);
    };
    gather_host_coordinators(client, options, options.rank);
    coordinators_ = read_host_coordinators(client, options);
  } catch (...) {
    error_ = std::current_exception();
  }
  done_.store(true, std::memory_order_release);  // pairs with is_done()
  const std::uint64_t one = 1;
  static_cast<void>(!::write(done_event_.get(), &one, sizeof one));
}

}  // namespace tccl
