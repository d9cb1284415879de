// The bytes of a ShrinkMessage, which come from other processes.
#include <gtest/gtest.h>

#include "communicator/shrink_message.h"

namespace tccl {
namespace {

ShrinkMessage example() {
  ShrinkMessage message;
  message.kind = ShrinkMessage::Kind::failed;
  message.attempt = 7;
  message.sender = 3;
  message.excluded = {1, 4};
  message.members = {{0, {4096, 17}}, {2, {8192, 18}}};
  message.code = Errc::peer_lost;
  message.text = "rank 1 died";
  message.ranks = {1};
  return message;
}

TEST(ShrinkMessage, ComesBackAsItWas) {
  const ShrinkMessage decoded = decode_shrink_message(encode(example()));
  EXPECT_EQ(decoded.kind, ShrinkMessage::Kind::failed);
  EXPECT_EQ(decoded.attempt, 7U);
  EXPECT_EQ(decoded.sender, 3);
  EXPECT_EQ(decoded.excluded, (std::vector<int>{1, 4}));
  ASSERT_EQ(decoded.members.size(), 2U);
  EXPECT_EQ(decoded.members[1].rank, 2);
  EXPECT_EQ(decoded.members[1].address.region_offset, 8192U);
  EXPECT_EQ(decoded.members[1].address.group_tag, 18U);
  EXPECT_EQ(decoded.code, Errc::peer_lost);
  EXPECT_EQ(decoded.text, "rank 1 died");
  EXPECT_EQ(decoded.ranks, std::vector<int>{1});
}

TEST(ShrinkMessage, TruncatedBytesAreRefused) {
  const std::string bytes = encode(example());
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(decode_shrink_message(bytes.substr(0, size)), Error);
}

TEST(ShrinkMessage, ACountThatIsTooLargeAllocatesNothing) {
  const std::string bytes = encode(example());
  for (std::size_t at = 0; at + 4 <= bytes.size(); ++at) {
    std::string changed = bytes;
    changed.replace(at, 4, "\xff\xff\xff\xff");
    try {
      const ShrinkMessage decoded = decode_shrink_message(changed);
      EXPECT_LE(decoded.kind, ShrinkMessage::Kind::watch);
      EXPECT_LE(decoded.code, Errc::internal);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::system);
    }
  }
}

}  // namespace
}  // namespace tccl
