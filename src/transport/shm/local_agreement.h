// LocalAgreement: how the ranks of a group on this host agree on the outcome of one attempt to
// shrink it, although the group may have failed and ranks may die meanwhile.
//
//   LocalAgreement agreement(group, attempt);
//   agreement.offer(text);                        // each rank that takes part, once
//   if (auto text = agreement.offer_of(2)) ...    // what rank 2 has offered
//   agreement.decide(outcome);                    // any rank, when it knows the outcome
//   if (auto outcome = agreement.decision()) ...  // on every rank the same
//
// The decision is one compare-and-swap on a word in the region of local rank 0, which stays mapped
// if that rank's process dies. So all ranks of the host see the same outcome, whoever dies when.
// Attempts are numbered from 1, and a rank begins one only after the previous one was decided; so
// texts of two attempts are kept, for ranks that have not read the earlier decision yet.
// Thread safety: one thread per attempt; the group must not be closed meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "transport/shm/local_group.h"

namespace tccl::shm {

class LocalAgreement {
 public:
  LocalAgreement(LocalGroup& group, std::uint32_t attempt) : group_(group), attempt_(attempt) {}

  void offer(std::string_view text);
  [[nodiscard]] std::optional<std::string> offer_of(int local_rank) const;

  /// False if the attempt was decided before: the first decision stays.
  bool decide(std::string_view outcome);
  [[nodiscard]] std::optional<std::string> decision() const;
  /// Whether the other ranks have decided a later attempt: this rank has missed its own.
  [[nodiscard]] bool is_superseded() const noexcept { return decided_attempt() > attempt_; }

 private:
  using Offset = std::atomic<std::uint64_t>;
  void publish(Offset& offset, std::string_view text);
  [[nodiscard]] std::optional<std::string> read(int local_rank, const Offset& offset) const;
  [[nodiscard]] LocalAgreementWords& words(int local_rank) const {
    return group_.region(local_rank).agreement;
  }
  /// The attempt of the last decision.
  [[nodiscard]] std::uint32_t decided_attempt() const noexcept;

  LocalGroup& group_;
  const std::uint32_t attempt_;
};

}  // namespace tccl::shm
