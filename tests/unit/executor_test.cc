// Executor: the records of the collectives of a group.
#include "communicator/executor.h"

#include <gtest/gtest.h>

namespace tccl {
namespace {

/// A group of one rank.
class Group {
 public:
  Group(ContextImpl& context, std::uint64_t group_uid) {
    parts_.local_group = std::make_shared<shm::LocalGroup>(
        context.arena(), shm::GroupIdentity{"tp", group_uid, 1}, shm::RegionLayout::of(1, 4096));
    const auto self = std::make_shared<LocalProcess>(context.arena().memory(), "a", 4711);
    parts_.local_group->set_members({{self, parts_.local_group->region_offset()}}, {0}, 0);
    set_all_members(context, parts_, HostMap(std::vector{0}), {});
    context.on_group_built(*parts_.membership, {});
    executor_ = std::make_unique<Executor>(context, parts_);
  }
  ~Group() {
    parts_.local_group->close();
    parts_.local_group->try_free();
  }

  std::uint64_t digest_after(const Operation& operation) {
    executor_->run(operation, Milliseconds(1000));
    return parts_.local_group->mine().log.at(executor_->last_sequence()).digest;
  }

 private:
  GroupParts parts_;
  std::unique_ptr<Executor> executor_;
};

/// A message of one group must not pass for one of another that has called the same operations.
TEST(Executor, TheDigestsOfAGroupAreItsOwn) {
  const auto context = std::static_pointer_cast<ContextImpl>(Context::create());
  {
    Group first(*context, 11);
    Group same(*context, 11);
    Group other(*context, 13);
    for (int i = 0; i < 3; ++i) {
      const std::uint64_t digest = first.digest_after(barrier());
      EXPECT_EQ(digest, same.digest_after(barrier()));
      EXPECT_NE(digest, other.digest_after(barrier()));
    }
  }
  context->close();
}

}  // namespace
}  // namespace tccl
