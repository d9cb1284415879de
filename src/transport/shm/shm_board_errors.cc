// The error messages of ShmBoard: mismatched operations, lost peers, timeouts.
#include "base/format.h"
#include "transport/shm/shm_board.h"

namespace tccl::shm {

void ShmBoard::throw_mismatch(int peer, std::uint32_t sequence) const {
  // The digests may have diverged at an earlier operation that did not synchronise: name the first.
  const OperationLog& mine = group_.mine().log;
  const OperationLog& theirs = group_.region(peer).log;
  const auto differs = [&](std::uint32_t candidate) {
    return mine.contains(candidate) && theirs.contains(candidate) &&
           mine.at(candidate).digest != theirs.at(candidate).digest;
  };
  std::uint32_t first = sequence;
  for (std::uint32_t back = 1; back < OperationLog::kLength / 2 && differs(sequence - back); ++back)
    first = sequence - back;
  const auto call_in = [&](const OperationLog& log) {
    const OpRecord& record = log.at(first);
    return describe(record, algorithm_name_(record.algorithm));
  };
  throw Error(Errc::mismatch,
              formatted("operation #{} of group {}: rank {} called {}, but {} called {}", first,
                        group_.group_name(), group_.global_rank(local_rank()), call_in(mine),
                        group_.who(peer), call_in(theirs)),
              {group_.global_rank(local_rank()), group_.global_rank(peer)});
}

Error ShmBoard::lost_error(int rank) const {
  Error error = group_.peer_lost_error(rank, operation());
  if (group_.state_of(rank) == PeerState::departed) return error;
  return {error.code(), formatted("{}; {}", error.what(), ranks_in_operation()), error.ranks()};
}

Error ShmBoard::explain(int peer, FunctionRef<bool(int)> arrived) const {
  if (group_.failed()) return group_.failure();
  if (const int lost = lost_rank(peer); lost >= 0) return lost_error(lost);
  if (other_hosts_.find_lost_rank)
    if (const auto lost = other_hosts_.find_lost_rank()) return *lost;
  return explain_timeout(arrived);
}

std::string ShmBoard::ranks_in_operation() const {
  std::vector<int> in_operation;
  for (int other = 0; other < size(); ++other)
    if (other == local_rank() || (has_joined(other) && group_.state_of(other) == PeerState::alive))
      in_operation.push_back(group_.global_rank(other));
  return formatted("rank{} {} had begun the operation", in_operation.size() == 1 ? "" : "s",
                   joined(in_operation));
}

const char* ShmBoard::progress_text(int rank) const {
  return has_joined(rank) ? "has joined it but makes no progress" : "has not joined it";
}

Error ShmBoard::explain_timeout(FunctionRef<bool(int)> arrived) const {
  const auto now = Clock::now();
  std::string text =
      formatted("{} timed out after {} (the timeout of this call)", operation(), text_of(timeout_));
  std::vector<int> stalled;
  std::vector<int> late;  // but not stalled
  for (int other = 0; other < size(); ++other) {
    if (other == local_rank() || arrived(other)) continue;
    const auto silence = heartbeats_[static_cast<std::size_t>(other)].silence(now);
    if (silence < kStalledAfter) {
      late.push_back(other);
      continue;
    }
    text += formatted("; {} {} and is stalled: no heartbeat for {}", group_.who(other),
                      progress_text(other), text_of(silence));
    stalled.push_back(group_.global_rank(other));
  }
  // They may wait for the stalled ranks elsewhere, in a receive for example.
  if (!stalled.empty())
    return {Errc::timeout,
            late.empty() ? text
                         : formatted("{}; {} other late ranks may wait for {}", text, late.size(),
                                     stalled.size() == 1 ? "it" : "them"),
            stalled};
  for (int& rank : late) {
    text += formatted("; {} {}", group_.who(rank), progress_text(rank));
    rank = group_.global_rank(rank);
  }
  return {Errc::timeout, text, late};
}

}  // namespace tccl::shm
