// PeerTable: which secrets are accepted, and which one a connection uses.
#include "health/peer_table.h"

#include <gtest/gtest.h>

namespace tccl::control {
namespace {

RemoteProcess::Identity identity_of(unsigned char id) {
  RemoteProcess::Identity identity;
  identity.id.fill(id);
  return identity;
}

TEST(PeerTable, ASecretOfAClosedGroupIsForgottenAfterOthers) {
  PeerTable table(/*max_retired=*/2);
  for (const char* secret : {"a", "b", "c", "open"}) table.add_secret(secret);
  const auto accepts = [&](const char* secret) {
    return table.find_secret(key_id(secret)) != nullptr;
  };
  table.retire_secret("a");
  table.retire_secret("b");
  EXPECT_TRUE(accepts("a")) << "a rank may not know yet that the group is closed here";
  table.retire_secret("c");
  EXPECT_FALSE(accepts("a"));
  EXPECT_TRUE(accepts("b"));
  EXPECT_TRUE(accepts("c"));
  EXPECT_TRUE(accepts("open"));
}

TEST(PeerTable, AConnectionUsesTheSecretOfAGroupThatIsOpen) {
  PeerTable table;
  const auto peer = table.find_or_add(identity_of(1), "world");
  EXPECT_EQ(table.find_or_add(identity_of(1), "pair"), peer);
  EXPECT_EQ(peer->secrets.back(), "pair");
  table.retire_secret("pair");
  EXPECT_EQ(peer->secrets.back(), "world");
  table.find_or_add(identity_of(1), "third");
  table.retire_secret("world");
  EXPECT_EQ(peer->secrets.back(), "third");
  table.retire_secret("third");
  EXPECT_EQ(peer->secrets.back(), "third") << "its notices may still have to be sent";
  table.find_or_add(identity_of(1), "fourth");
  table.find_or_add(identity_of(1), "fifth");
  table.retire_secret("fifth");
  table.retire_secret("fourth");
  EXPECT_EQ(peer->secrets, std::vector<std::string>{"fourth"}) << "not the older one, third";
}

TEST(PeerTable, SecretsBelongToThePeersOfTheirGroup) {
  PeerTable table;
  const auto first = table.find_or_add(identity_of(1), "world");
  const auto second = table.find_or_add(identity_of(2), "world");
  table.find_or_add(identity_of(2), "pair");
  EXPECT_EQ(first->secrets, std::vector<std::string>{"world"});
  EXPECT_EQ(second->secrets, (std::vector<std::string>{"world", "pair"}));
}

}  // namespace
}  // namespace tccl::control
