// Why a group cannot be shrunk: the errors of a ShrinkAttempt.
#include <algorithm>
#include <chrono>
#include <map>

#include "base/format.h"
#include "communicator/shrink_attempt.h"

namespace tccl {
namespace {

/// For offers, or the reason of a failure, that are on their way.
constexpr std::chrono::milliseconds kGrace{1'000};

}  // namespace

/// The ranks without which this rank cannot know the outcome.
std::vector<int> ShrinkAttempt::awaited() const {
  std::vector<int> ranks;
  for (const int rank : local_members_)
    if (!local_offers_.contains(rank)) ranks.push_back(rank);
  if (!has_several_hosts()) return ranks;
  if (!is_coordinator() && !contains(ranks, coordinator_)) ranks.push_back(coordinator_);
  if (is_coordinator() && !is_first()) ranks.push_back(first_);
  if (is_first())
    for (const int rank : other_coordinators_)
      if (!host_offers_.contains(rank)) ranks.push_back(rank);
  return ranks;
}

std::vector<int> ShrinkAttempt::find_lost() const {
  std::vector<int> lost = awaited();
  std::erase_if(lost, [&](int rank) { return membership_.state_of(rank) == PeerState::alive; });
  return lost;
}

std::optional<Error> ShrinkAttempt::find_problem(const std::vector<int>& lost) {
  const bool disagree = !all_agree();
  if ((disagree || has_later_attempt_begun_) && !problem_found_) problem_found_ = Clock::now();
  const bool grace_is_over = problem_found_ && Clock::now() >= *problem_found_ + kGrace;
  if (disagree && (grace_is_over || is_disagreement_complete())) return disagreement();
  if (disagree) return std::nullopt;
  for (const int rank : lost)
    if (contains(awaited(), rank)) return lost_error(rank);
  if (has_later_attempt_begun_ && grace_is_over) return superseded();
  if (Clock::now() >= deadline()) return timeout_error();
  return std::nullopt;
}

Error ShrinkAttempt::superseded() const {
  return error(
      Errc::mismatch,
      formatted("rank {} is late: this is its call number {}, and the other ranks have made "
                "a later one",
                rank_, attempt_),
      {rank_});
}

/// Whether every rank of this host that may call has done so, for a message that names all ranks.
bool ShrinkAttempt::is_disagreement_complete() const {
  const auto is_excluded_by_all = [&](int rank) {
    return std::ranges::all_of(
        local_offers_, [&](const auto& entry) { return contains(entry.second.excluded, rank); });
  };
  for (int rank = 0; rank < membership_.size(); ++rank)
    if (membership_.is_local(rank) && !local_offers_.contains(rank) && !is_excluded_by_all(rank) &&
        membership_.state_of(rank) == PeerState::alive)
      return false;
  return true;
}

std::string ShrinkAttempt::text_of_excluded(const std::vector<int>& ranks) {
  return ranks.empty() ? "none" : ranks_text(ranks);
}

Error ShrinkAttempt::disagreement() const {
  std::map<std::vector<int>, std::vector<int>> callers;  // by the ranks that they exclude
  for (const auto& [rank, offer] : local_offers_) callers[offer.excluded].push_back(rank);
  for (const auto& [sender, offer] : host_offers_)
    for (const auto& member : offer.members) callers[offer.excluded].push_back(member.rank);
  std::string text;
  std::vector<int> all;
  for (auto& [excluded, ranks] : callers) {
    std::ranges::sort(ranks);
    all.insert(all.end(), ranks.begin(), ranks.end());
    text += formatted("{}{} exclude{} {}", text.empty() ? "" : "; ", ranks_text(ranks),
                      ranks.size() == 1 ? "s" : "", text_of_excluded(excluded));
  }
  std::ranges::sort(all);
  return error(Errc::mismatch, "the ranks exclude different ranks: " + text, std::move(all));
}

Error ShrinkAttempt::lost_error(int rank) const {
  const std::string operation = "shrink of group " + membership_.name();
  if (!membership_.is_local(rank)) return membership_.peer_lost_error(rank, operation);
  const std::string who = membership_.who(rank);
  if (membership_.state_of(rank) == PeerState::died)
    return {Errc::peer_lost, died_during(who, operation), {rank}};
  return {Errc::peer_lost, left_before(who, membership_.name(), operation), {rank}};
}

/// Ranks that know more fail first: the rank that waits for one of its host names it.
Deadline ShrinkAttempt::deadline() const {
  if (!all_local_offered()) return deadline_;
  const int stage = is_first() ? 1 : is_coordinator() ? 2 : 3;
  return deadline_ < Deadline::max() - 3 * kGrace ? deadline_ + stage * kGrace : deadline_;
}

Error ShrinkAttempt::timeout_error() const {
  std::vector<int> missing = awaited();
  if (!all_local_offered())  // the ranks of other hosts may wait for these
    std::erase_if(missing, [&](int rank) {
      return !membership_.is_local(rank) || local_offers_.contains(rank);
    });
  std::string text;
  for (const int rank : missing)
    text += formatted("{}{}", text.empty() ? "" : ", ", membership_.who(rank));
  text += has_several_hosts() && all_local_offered()
              ? ", or another rank of the same host, has not called it"
              : formatted(" {} not called it", missing.size() == 1 ? "has" : "have");
  const double seconds = std::chrono::duration<double>(options_.timeout).count();
  return {Errc::timeout,
          formatted("shrink of group {} timed out after {:.1f} s: {}; rank {} waited for {}",
                    membership_.name(), seconds, text, rank_, missing.size() == 1 ? "it" : "them"),
          missing};
}

}  // namespace tccl
