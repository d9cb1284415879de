// One attempt to shrink a group, as one rank sees it. The ranks know each other from the group, so
// they only have to agree on who is excluded, and whether the new group exists:
//   1. Each rank makes its part of the new group and offers it, with the ranks that it excludes, to
//      the ranks of its host (LocalAgreement).
//   2. Several hosts: the coordinator of each host, its first rank that is not excluded, sends the
//      offers of its host to the first of all ranks, over the control connections.
//   3. The first rank, or any rank if all are on one host, decides that the group is formed when it
//      has all offers and they exclude the same ranks. Coordinators pass the decision to their host.
// Whoever finds a reason why the group cannot be formed (a rank that has died or does not call in
// time, other excluded ranks, no memory) decides that for its host and tells the coordinators. The
// first decision of a host counts, so all ranks of a host have the same outcome. Ranks of different
// hosts have, unless a coordinator dies while the decision is on its way.
//
//   ShrinkAttempt attempt(context, parent, excluded, number, options, early);
//   attempt.begin();
//   while (!attempt.poll()) sleep();
//   GroupParts parts = attempt.finish();
//
// shrink_problems.cc has the reasons of failures. Thread safety: one thread; the group must not be
// closed during a call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "communicator/derived_group.h"
#include "communicator/shrink_message.h"
#include "tccl/communicator.h"
#include "transport/shm/local_agreement.h"

namespace tccl {

class ShrinkAttempt {
 public:
  /// `excluded`: sorted. Attempts are numbered from 1. `early`: messages of later attempts, which
  /// are kept for them. All references must outlive it.
  ShrinkAttempt(ContextImpl& context, const GroupParts& parent, std::vector<int> excluded,
                std::uint32_t attempt, const Communicator::Options& options,
                std::vector<ShrinkMessage>& early);

  /// Offers this rank's part.
  void begin();
  /// Whether the outcome is known. Call repeatedly; returns at once.
  bool poll();
  /// The attempt fails on all ranks, unless its outcome is known.
  void fail(const Error& reason);
  /// Once the outcome is known: the new group, or throws why there is none.
  GroupParts finish();

  /// `shrink of group tp: text`
  [[nodiscard]] Error error(Errc code, const std::string& text, std::vector<int> ranks) const;

 private:
  using Kind = ShrinkMessage::Kind;

  static bool contains(const std::vector<int>& ranks, int rank) {
    return std::ranges::find(ranks, rank) != ranks.end();
  }
  static std::string text_of_excluded(const std::vector<int>& ranks);

  [[nodiscard]] bool has_several_hosts() const { return !other_coordinators_.empty(); }
  [[nodiscard]] bool is_coordinator() const { return rank_ == coordinator_; }
  [[nodiscard]] bool is_first() const { return rank_ == first_; }
  [[nodiscard]] int local_rank(int rank) const;

  [[nodiscard]] std::optional<ShrinkMessage> outcome() const;
  void read_local_offers();
  void take_messages();
  void handle(const ShrinkMessage& message);
  [[nodiscard]] bool all_local_offered() const;
  [[nodiscard]] bool all_hosts_offered() const;
  [[nodiscard]] bool all_agree() const;
  void advance();
  void decide(const ShrinkMessage& outcome);
  void announce(const ShrinkMessage& outcome);
  void send(int rank, const ShrinkMessage& message);
  [[nodiscard]] ShrinkMessage message_of(Kind kind) const;
  [[nodiscard]] ShrinkMessage offer_of_host() const;

  // --- why the group cannot be formed ---
  [[nodiscard]] std::vector<int> awaited() const;
  [[nodiscard]] std::vector<int> find_lost() const;
  [[nodiscard]] std::optional<Error> find_problem(const std::vector<int>& lost);
  [[nodiscard]] bool is_disagreement_complete() const;
  [[nodiscard]] Error disagreement() const;
  [[nodiscard]] Error superseded() const;
  [[nodiscard]] Error lost_error(int rank) const;
  [[nodiscard]] Error timeout_error() const;
  [[nodiscard]] Deadline deadline() const;

  ContextImpl& context_;
  const GroupParts& parent_;
  Membership& membership_;
  const std::vector<int> excluded_;
  const std::uint32_t attempt_;
  const Communicator::Options& options_;
  std::vector<ShrinkMessage>& early_;
  const int rank_;
  std::vector<int> members_;             // of the new group: ranks of the parent
  std::vector<int> local_members_;       // on this host
  std::vector<int> other_coordinators_;  // of the other hosts
  int coordinator_ = -1;                 // of this host
  int first_ = -1;                       // of all members
  shm::LocalAgreement agreement_;
  std::optional<DerivedGroup> derived_;
  std::map<int, ShrinkMessage> local_offers_;  // by rank; also of ranks that are excluded here
  std::map<int, ShrinkMessage> host_offers_;   // of other hosts, by sender
  bool has_sent_offer_ = false;                // of this host, to the first rank
  bool has_later_attempt_begun_ = false;       // on another host
  Deadline deadline_;
  /// When a disagreement, or a later attempt, was found: its reason may be still on its way.
  std::optional<Deadline> problem_found_;
};

}  // namespace tccl
