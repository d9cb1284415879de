// Waits for keys in a store.
#include "rendezvous/store_collectives.h"

#include <gtest/gtest.h>

#include "memory_store.h"
#include "tccl/error.h"

namespace tccl {
namespace {

using namespace std::chrono_literals;

TEST(StoreClient, AKeyIsReadAlsoIfItsWriterHasGoneSince) {
  MemoryStore store;
  StoreClient client{store, "prefix", deadline_after(10s), nullptr};
  client.while_waiting = [&](int /*participant*/) {
    store.set("prefix/round", "text");
    throw Error(Errc::peer_lost, "the participant has gone");
  };
  EXPECT_EQ(client.read(client.key("round"), 1), "text");
}

TEST(StoreClient, AWaitEndsIfTheWriterHasGone) {
  MemoryStore store;
  StoreClient client{store, "prefix", deadline_after(10s), nullptr};
  client.while_waiting = [&](int participant) {
    throw Error(Errc::peer_lost, "participant " + std::to_string(participant) + " has gone");
  };
  try {
    static_cast<void>(client.read(client.key("round"), 1));
    FAIL() << "there is no such key";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "participant 1 has gone");
  }
}

}  // namespace
}  // namespace tccl
