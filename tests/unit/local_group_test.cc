// LocalGroup: the failure mark of a group on one host, and the reuse of a region by the next group.
#include "transport/shm/local_group.h"

#include <gtest/gtest.h>

#include "unit/local_groups.h"

namespace tccl::shm {
namespace {

class LocalGroupTest : public ::testing::Test {
 protected:
  LocalGroups make(std::uint64_t group_uid) { return make_group(processes_, group_uid); }
  static void close_and_free(const LocalGroups& groups) {
    for (const auto& group : groups) group->close();
    for (const auto& group : groups) ASSERT_TRUE(group->try_free());
  }

 private:
  std::array<FakeProcess, 2> processes_;
};

TEST_F(LocalGroupTest, AFailureMarksEveryMember) {
  const LocalGroups groups = make(11);
  EXPECT_FALSE(groups[0]->failed());
  groups[1]->fail(Error(Errc::aborted, "rank 1 gave up", {1}), {1, 0x1'0000'0000 - 2});
  for (const auto& group : groups) {
    EXPECT_TRUE(group->failed());
    EXPECT_STREQ(group->failure().what(), "rank 1 gave up");
    EXPECT_EQ(group->failure_source().reporter, 1);
    EXPECT_TRUE(group->failed_later_than(0xffff'fffd));
    EXPECT_FALSE(group->failed_later_than(0xffff'fffe));
    EXPECT_FALSE(group->failed_later_than(3)) << "sequence numbers wrap";
  }
  groups[0]->fail(Error(Errc::timeout, "rank 0 waited too long", {0}), {0});
  EXPECT_STREQ(groups[1]->failure().what(), "rank 1 gave up") << "the first reason stays";
  close_and_free(groups);
}

/// A rank that was stopped between its last look at the group and the marking.
TEST_F(LocalGroupTest, ALateMarkDoesNotReachTheNextGroupAtTheSameOffset) {
  const LocalGroups old = make(11);
  RegionHeader& recycled = old[1]->region(0);
  close_and_free(old);
  recycled.mark_failed(11, 1);  // while it belongs to no group
  const LocalGroups next = make(13);
  ASSERT_EQ(&next[1]->region(0), &recycled);
  EXPECT_FALSE(next[0]->failed());
  recycled.mark_failed(11, 1);
  EXPECT_FALSE(next[0]->failed());
  EXPECT_FALSE(next[1]->is_marked_failed(0));
  recycled.mark_failed(13, 1);
  EXPECT_TRUE(next[0]->failed());
  close_and_free(next);
}

}  // namespace
}  // namespace tccl::shm
