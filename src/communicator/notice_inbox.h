// NoticeInbox: delivers the notices of other hosts to the group that they name.
//
// Groups are not created and closed at the same moment on all hosts, so a notice may name
//   - a group of this process: find_group() returns its Membership, which handles the notice;
//   - a group whose rendezvous has not finished here: the notice is kept until add_group();
//   - a group from which this process has departed: departure_of() is the answer to a rank that
//     subscribes.
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "transport/membership.h"

namespace tccl {

class NoticeInbox {
 public:
  struct Limits {
    std::size_t early_notices = 1024;    // of all groups that are not known yet
    std::size_t departed_groups = 4096;  // that departure_of() remembers
  };
  explicit NoticeInbox(Limits limits) : limits_(limits) {}
  NoticeInbox() : NoticeInbox(Limits()) {}

  /// From now on find_group() finds the group. Delivers the notices that came before.
  void add_group(const std::shared_ptr<Membership>& membership);
  /// The group that the notice names, or null. A notice of an unknown group is kept; beyond the
  /// limit the oldest one is dropped.
  std::shared_ptr<Membership> find_group(const std::shared_ptr<RemoteProcess>& from,
                                         const Notice& notice);
  /// The groups that are still in use.
  [[nodiscard]] std::vector<std::shared_ptr<Membership>> groups() const;

  /// This process has departed from the group of the notice.
  void record_departure(const Notice& departure) noexcept;
  [[nodiscard]] std::optional<Notice> departure_of(std::uint64_t group_uid) const;

 private:
  struct EarlyNotice {
    std::shared_ptr<RemoteProcess> from;
    Notice notice;
  };
  std::vector<EarlyNotice> take_early_notices(std::uint64_t group_uid);

  const Limits limits_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::weak_ptr<Membership>> groups_;
  std::map<std::uint64_t, Notice> departed_;  // by group_uid
  std::deque<std::uint64_t> departed_order_;  // oldest first
  std::deque<EarlyNotice> early_;             // oldest first
};

}  // namespace tccl
