#include "communicator/notice_inbox.h"

#include <new>

namespace tccl {

void NoticeInbox::add_group(const std::shared_ptr<Membership>& membership) {
  std::vector<EarlyNotice> early;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(groups_, [](const auto& known) { return known.expired(); });
    groups_.push_back(membership);
    early = take_early_notices(membership->group_uid());
  }
  for (const EarlyNotice& each : early) membership->handle_notice(*each.from, each.notice);
}

std::vector<NoticeInbox::EarlyNotice> NoticeInbox::take_early_notices(std::uint64_t group_uid) {
  const auto names_group = [&](const EarlyNotice& each) {
    return each.notice.group_uid == group_uid;
  };
  std::vector<EarlyNotice> taken;
  for (const EarlyNotice& each : early_)
    if (names_group(each)) taken.push_back(each);
  std::erase_if(early_, names_group);
  return taken;
}

/// Looks for the group and keeps the notice under one lock: add_group() must not come in between.
std::shared_ptr<Membership> NoticeInbox::find_group(const std::shared_ptr<RemoteProcess>& from,
                                                    const Notice& notice) {
  const std::lock_guard lock(mutex_);
  for (const auto& known : groups_)
    if (auto membership = known.lock(); membership && membership->group_uid() == notice.group_uid)
      return membership;
  if (departed_.contains(notice.group_uid)) return nullptr;
  early_.push_back({from, notice});
  if (early_.size() > limits_.early_notices) early_.pop_front();
  return nullptr;
}

std::vector<std::shared_ptr<Membership>> NoticeInbox::groups() const {
  std::vector<std::shared_ptr<Membership>> groups;
  const std::lock_guard lock(mutex_);
  for (const auto& known : groups_)
    if (auto membership = known.lock()) groups.push_back(std::move(membership));
  return groups;
}

void NoticeInbox::record_departure(const Notice& departure) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    departed_order_.push_back(departure.group_uid);
    departed_.emplace(departure.group_uid, departure);
  } catch (const std::bad_alloc&) {
    return;  // a rank that subscribes later learns only that this process has departed, or ends
  }
  if (departed_order_.size() <= limits_.departed_groups) return;
  departed_.erase(departed_order_.front());
  departed_order_.pop_front();
}

std::optional<Notice> NoticeInbox::departure_of(std::uint64_t group_uid) const {
  const std::lock_guard lock(mutex_);
  const auto found = departed_.find(group_uid);
  return found == departed_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace tccl
