#include "rendezvous/init_errors.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include "base/format.h"
#include "rendezvous/host_discovery.h"
#include "rendezvous/join_record.h"

namespace tccl {
namespace {

constexpr std::chrono::milliseconds kRankZeroGrace{500};
/// A rank that knows the cause of a timeout publishes it at the deadline; its peers wait for it.
constexpr std::chrono::milliseconds kCauseGrace{500};
constexpr std::chrono::milliseconds kLongestCauseGrace{2000};
constexpr std::size_t kMaxNamed = 8;  // processes, so that the message stays readable

/// The ranks of a group by what they did before the timeout.
struct Participation {
  std::vector<int> waited;
  std::vector<int> never_joined;
  std::vector<int> incomplete;         // joined, but does not wait
  std::vector<std::string> processes;  // of the incomplete ranks: "rank 2 (host b, pid 4711)"
};

std::string rank_text(int rank, const JoinRecord& record) {
  return record.joined ? formatted("rank {} ({})", rank, record.process)
                       : formatted("rank {}", rank);
}

std::string listed(std::span<const std::string> processes) {
  std::string text;
  for (std::size_t i = 0; i < std::min(processes.size(), kMaxNamed); ++i)
    text += (i == 0 ? "" : ", ") + processes[i];
  if (processes.size() > kMaxNamed) text += formatted(" and {} more", processes.size() - kMaxNamed);
  return text;
}

Participation read_participation(const RendezvousOptions& options,
                                 std::span<const int> local_waiters) {
  Participation result;
  const StoreClient client = store_client_for(options, {});
  for (int rank = 0; rank < options.size; ++rank) {
    if (std::ranges::find(local_waiters, rank) != local_waiters.end()) {
      result.waited.push_back(rank);
      continue;
    }
    const JoinRecord record = read_join_record(client, rank);
    if (!record.joined) {
      result.never_joined.push_back(rank);
    } else if (record.waiting) {
      result.waited.push_back(rank);
    } else {
      result.incomplete.push_back(rank);
      result.processes.push_back(rank_text(rank, record));
    }
  }
  return result;
}

/// The ranks of this host whose processes are stopped.
std::optional<Error> stalled_ranks_timeout(const RendezvousOptions& options) {
  const StoreClient client = store_client_for(options, {});
  std::vector<int> ranks;
  std::vector<std::string> processes;
  for (int rank = 0; rank < options.size; ++rank) {
    const JoinRecord record = read_join_record(client, rank);
    if (!record.joined || !record.identity.is_stopped()) continue;
    ranks.push_back(rank);
    processes.push_back(rank_text(rank, record));
  }
  if (ranks.empty()) return std::nullopt;
  return init_timeout(options,
                      formatted("{} {} stalled: stopped while the group was formed",
                                listed(processes), ranks.size() == 1 ? "is" : "are"),
                      ranks);
}

std::optional<Error> published_failure(const RendezvousOptions& options) {
  try {
    throw_if_failure_published(store_client_for(options, {}));
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

std::string this_rank(const RendezvousOptions& options) {
  return formatted("rank {} ({})", options.rank, this_process_text());
}

Error own_failure(const RendezvousOptions& options, Errc code, const char* reason) {
  return init_error(
      options.group, code,
      formatted("{} failed before the group was formed: {}", this_rank(options), reason),
      {options.rank});
}

/// Its process, if it has ended. The connections of a process are closed a little before it has ended.
std::string ended_rank_zero(const RendezvousOptions& options) {
  if (options.rank == 0 || !options.lost_process) return {};
  const Deadline deadline = deadline_after(kRankZeroGrace);
  for (;;) {
    std::string process = options.lost_process(0);
    if (!process.empty() || Clock::now() >= deadline) return process;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

Error init_error(const std::string& group, Errc code, const std::string& text,
                 std::vector<int> ranks) {
  return {code, formatted("init of group {}: {}", group, text), std::move(ranks)};
}

Error init_timeout(const RendezvousOptions& options, const std::string& text,
                   std::vector<int> ranks) {
  return {Errc::timeout,
          formatted("init of group {} timed out after {}: {}", options.group,
                    text_of(options.timeout), text),
          std::move(ranks)};
}

bool is_unattributed_timeout(const Error& error) {
  return error.code() == Errc::timeout && error.ranks().empty();
}

bool is_unattributed_system_error(const Error& error) {
  return error.code() == Errc::system && error.ranks().empty();
}

Error attributed_to_this_rank(const RendezvousOptions& options) {
  try {
    throw;
  } catch (const Error& error) {
    if (!error.ranks().empty()) return error;
    if (is_unattributed_timeout(error))
      if (const auto cause = known_cause_of_timeout(options, /*levels=*/0)) return *cause;
    if (is_unattributed_system_error(error))
      if (const std::string process = ended_rank_zero(options); !process.empty())
        return ended_error(options, process, 0);
    if (dynamic_cast<const StoreFailure*>(&error) != nullptr)
      return init_error(options.group, error.code(),
                        formatted("the store, which rank 0 or the launcher serves, may have "
                                  "ended: {}; noticed by rank {} on {}",
                                  error.what(), options.rank, this_process_text()));
    return own_failure(options, error.code(), error.what());
  } catch (const std::exception& error) {
    return own_failure(options, Errc::system, error.what());
  } catch (...) {
    return own_failure(options, Errc::system, "an exception of unknown type");
  }
}

Error failed_start_error(const RendezvousOptions& options, const std::string& reason) {
  return init_error(options.group, Errc::system,
                    formatted("{} could not start: {}", this_rank(options), reason),
                    {options.rank});
}

Error interrupt_error(const RendezvousOptions& options) {
  return init_error(options.group, Errc::aborted,
                    this_rank(options) + " was interrupted before the group was formed",
                    {options.rank});
}

Error ended_error(const RendezvousOptions& options, const std::string& process, int rank) {
  return init_error(options.group, Errc::peer_lost,
                    process + " ended before the group was formed (Connection closed by peer)",
                    {rank});
}

Error other_user_error(const RendezvousOptions& options, const std::string& coordinator,
                       const std::string& member) {
  return {Errc::invalid_argument,
          formatted("the rendezvous socket of group {} belongs to {}, but this rank to {}: without "
                    "CCL_SECRET_FILE all ranks of a host must belong to one user",
                    options.group, coordinator, member)};
}

Error incomplete_rank_error(const RendezvousOptions& options, const std::string& process, int rank,
                            const Error& reason) {
  if (reason.code() == Errc::peer_lost)
    return init_error(options.group, reason.code(),
                      formatted("{} left before the group was formed ({})", process, reason.what()),
                      {rank});
  const std::string text = process + " did not complete the rendezvous";
  if (reason.code() == Errc::timeout) return init_timeout(options, text, {rank});
  return init_error(options.group, reason.code(), formatted("{}: {}", text, reason.what()), {rank});
}

std::optional<Error> known_cause_of_timeout(const RendezvousOptions& options, int levels) {
  if (options.secret.empty()) return std::nullopt;  // the records have keys of the secret
  const Deadline deadline =
      options.deadline + std::min(kCauseGrace * (levels + 1), kLongestCauseGrace);
  try {
    if (auto stalled = stalled_ranks_timeout(options)) return stalled;
    for (;;) {
      if (auto failure = published_failure(options)) return failure;
      if (Clock::now() >= deadline) return std::nullopt;
      std::this_thread::sleep_for(poll_interval_of(options.size));
    }
  } catch (const Error&) {
    return std::nullopt;  // the store has failed
  }
}

std::optional<Error> stalled_members_timeout(const RendezvousOptions& options,
                                             const std::vector<int>& missing) {
  if (missing.empty() || !options.stalled_processes) return std::nullopt;
  const auto stalled = options.stalled_processes(missing);
  if (stalled.empty()) return std::nullopt;
  std::vector<int> ranks;
  std::vector<std::string> processes;
  for (const auto& [rank, process] : stalled) {
    ranks.push_back(rank);
    processes.push_back(process);
  }
  return init_timeout(options,
                      formatted("{} {} stalled and never joined; other ranks may be waiting for {}",
                                listed(processes), ranks.size() == 1 ? "is" : "are",
                                ranks.size() == 1 ? "it" : "them"),
                      ranks);
}

std::string joined_processes_text(const RendezvousOptions& options, std::span<const int> ranks) {
  const StoreClient client = store_client_for(options, {});
  std::vector<std::string> processes;
  for (const int rank : ranks) processes.push_back(rank_text(rank, read_join_record(client, rank)));
  return listed(processes);
}

Error missing_ranks_timeout(const RendezvousOptions& options, std::span<const int> local_waiters) {
  if (const auto stalled = stalled_ranks_timeout(options)) return *stalled;
  const Participation p = read_participation(options, local_waiters);
  if (const auto stalled = stalled_members_timeout(options, p.never_joined)) return *stalled;
  std::vector<int> ranks = p.never_joined;
  ranks.insert(ranks.end(), p.incomplete.begin(), p.incomplete.end());
  if (ranks.empty()) {
    if (const auto cause = known_cause_of_timeout(options, /*levels=*/1)) return *cause;
    return init_timeout(
        options,
        formatted("all {} ranks joined, but the rendezvous did not complete", options.size),
        {options.rank});
  }
  std::string text;
  if (!p.never_joined.empty()) text = ranks_text(p.never_joined) + " never joined; ";
  if (!p.incomplete.empty())
    text += listed(p.processes) + " joined but never completed the rendezvous; ";
  text += formatted("{} waited for {}", ranks_text(p.waited), ranks.size() == 1 ? "it" : "them");
  return init_timeout(options, text, ranks);
}

}  // namespace tccl
