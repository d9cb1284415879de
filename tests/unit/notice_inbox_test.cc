// NoticeInbox: notices of groups that exist, that do not exist yet, and from which this process has
// departed.
#include "communicator/notice_inbox.h"

#include <gtest/gtest.h>

#include <array>

namespace tccl {
namespace {

/// Rank 0 of a group, the only rank of its host.
class OneLocalRank : public LocalMembership {
 public:
  explicit OneLocalRank(std::uint64_t uid) : uid_(uid) {}

  [[nodiscard]] const std::string& group_name() const noexcept override { return name_; }
  [[nodiscard]] std::uint64_t group_uid() const noexcept override { return uid_; }
  [[nodiscard]] int local_rank() const noexcept override { return 0; }
  [[nodiscard]] int global_rank(int local_rank) const override { return local_rank; }
  [[nodiscard]] std::string who(int /*local_rank*/) const override { return "rank 0"; }
  [[nodiscard]] PeerState state_of(int /*local_rank*/) const noexcept override {
    return PeerState::alive;
  }
  [[nodiscard]] std::uint32_t liveness_counter(int /*local_rank*/) const noexcept override {
    return 0;
  }
  [[nodiscard]] Error peer_lost_error(int /*local_rank*/,
                                      const std::string& operation) const override {
    return {Errc::peer_lost, operation};
  }
  [[nodiscard]] bool process_has_ended(int) const noexcept override { return false; }
  void note_lost(const LostRank& /*lost*/) noexcept override {}
  [[nodiscard]] std::vector<LostRank> lost_ranks() const override { return {}; }
  [[nodiscard]] bool failed() const noexcept override { return failed_; }
  [[nodiscard]] Error failure() const override { return {Errc::aborted, "failed"}; }
  [[nodiscard]] FailureSource failure_source() const override { return {}; }
  [[nodiscard]] Error earlier_failure() const override { return failure(); }
  Error fail(const Error& reason, FailureSource /*source*/) noexcept override {
    failed_ = true;
    return reason;
  }

 private:
  std::string name_ = "group";
  std::uint64_t uid_;
  bool failed_ = false;
};

/// RemoteProcess has no public constructor: the control plane makes them.
struct AnotherHost final : RemoteProcess {
  AnotherHost() : RemoteProcess({}) {}
};

class NoticeInboxTest : public ::testing::Test {
 protected:
  /// A group of rank 0 here and rank 1 in the process `remote`.
  std::shared_ptr<Membership> make_group(std::uint64_t uid) {
    const std::array<int, 2> hosts{0, 1};
    return std::make_shared<Membership>(std::make_shared<OneLocalRank>(uid), HostMap(hosts),
                                        Membership::Peers{nullptr, remote}, /*control=*/nullptr);
  }
  static Notice departed_notice(std::uint64_t group) {
    return {group, static_cast<std::uint32_t>(GroupNotice::departed), {}};
  }

  std::shared_ptr<RemoteProcess> remote = std::make_shared<AnotherHost>();
};

/// From a process of this job, but perhaps of another version, or damaged.
TEST_F(NoticeInboxTest, MalformedNoticesDoNoHarm) {
  for (const std::uint32_t kind : {0U, 4U, 5U, 6U, 77U, 0xffffffffU}) {
    const auto group = make_group(1);
    group->handle_notice(*remote, {1, kind, "text"});
    EXPECT_FALSE(group->failed()) << kind;
    EXPECT_EQ(group->state_of(1), PeerState::alive) << kind;
  }
  for (const char* text : {"", "x", "\n", "0 999 4000000000 1 2", "-7 -7 -7\n", "0 0 3 1"}) {
    const auto group = make_group(1);
    group->handle_notice(*remote, {1, static_cast<std::uint32_t>(GroupNotice::failed), text});
    EXPECT_TRUE(group->failed()) << text;
  }
}

TEST_F(NoticeInboxTest, AShrinkMessageIsPutTogetherFromItsParts) {
  const auto group = make_group(1);
  const auto receive = [&](const std::string& text) {
    group->handle_notice(*remote, {1, static_cast<std::uint32_t>(GroupNotice::shrink), text});
  };
  receive("+first ");
  EXPECT_TRUE(group->take_shrink_messages().empty());
  receive(".message");
  receive(".second");
  receive("");  // not from a rank that follows the protocol
  EXPECT_EQ(group->take_shrink_messages(), (std::vector<std::string>{"first message", "second"}));
  EXPECT_TRUE(group->take_shrink_messages().empty());
}

TEST_F(NoticeInboxTest, FindsTheGroupThatTheNoticeNames) {
  NoticeInbox inbox;
  const auto first = make_group(1);
  const auto second = make_group(2);
  inbox.add_group(first);
  inbox.add_group(second);
  EXPECT_EQ(inbox.find_group(remote, departed_notice(1)), first);
  EXPECT_EQ(inbox.find_group(remote, departed_notice(2)), second);
  EXPECT_EQ(inbox.find_group(remote, departed_notice(3)), nullptr);
}

TEST_F(NoticeInboxTest, DeliversEarlyNoticesOnceTheGroupExists) {
  NoticeInbox inbox;
  EXPECT_EQ(inbox.find_group(remote, departed_notice(1)), nullptr);
  const auto other = make_group(2);
  inbox.add_group(other);
  EXPECT_EQ(other->state_of(1), PeerState::alive) << "the notice names another group";
  const auto group = make_group(1);
  inbox.add_group(group);
  EXPECT_EQ(group->state_of(1), PeerState::departed);
  const auto again = make_group(1);
  inbox.add_group(again);
  EXPECT_EQ(again->state_of(1), PeerState::alive) << "a notice is delivered once";
}

TEST_F(NoticeInboxTest, DropsTheOldestEarlyNoticeBeyondTheLimit) {
  NoticeInbox inbox({.early_notices = 2, .departed_groups = 2});
  for (const std::uint64_t group : {1, 2, 3})
    EXPECT_EQ(inbox.find_group(remote, departed_notice(group)), nullptr);
  for (const std::uint64_t group : {1, 2, 3}) {
    const auto membership = make_group(group);
    inbox.add_group(membership);
    EXPECT_EQ(membership->state_of(1), group == 1 ? PeerState::alive : PeerState::departed)
        << group;
  }
}

TEST_F(NoticeInboxTest, RemembersDepartures) {
  NoticeInbox inbox({.early_notices = 2, .departed_groups = 2});
  for (const std::uint64_t group : {1, 2, 3}) inbox.record_departure(departed_notice(group));
  EXPECT_FALSE(inbox.departure_of(1)) << "beyond the limit the oldest is dropped";
  ASSERT_TRUE(inbox.departure_of(2));
  ASSERT_TRUE(inbox.departure_of(3));
  EXPECT_EQ(inbox.departure_of(3)->group_uid, 3U);
  EXPECT_EQ(inbox.departure_of(3)->kind, static_cast<std::uint32_t>(GroupNotice::departed));
}

TEST_F(NoticeInboxTest, KeepsNoNoticesOfDepartedGroups) {
  NoticeInbox inbox;
  inbox.record_departure(departed_notice(1));
  EXPECT_EQ(inbox.find_group(remote, departed_notice(1)), nullptr);
  const auto group = make_group(1);
  inbox.add_group(group);
  EXPECT_EQ(group->state_of(1), PeerState::alive);
}

TEST_F(NoticeInboxTest, ForgetsGroupsThatNobodyUses) {
  NoticeInbox inbox;
  auto group = make_group(1);
  inbox.add_group(group);
  EXPECT_EQ(inbox.groups().size(), 1U);
  group.reset();
  EXPECT_TRUE(inbox.groups().empty());
  EXPECT_EQ(inbox.find_group(remote, departed_notice(1)), nullptr);
}

}  // namespace
}  // namespace tccl
