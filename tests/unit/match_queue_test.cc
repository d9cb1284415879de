// MatchQueue: which receive gets which message.
#include "communicator/match_queue.h"

#include <gtest/gtest.h>

namespace tccl {
namespace {

P2pWorkPtr receive(int source, std::uint64_t tag) {
  return std::make_shared<P2pWork>(nullptr, recv(nullptr, 0, source, tag),
                                   Communicator::CallOptions(), 1);
}

UnexpectedMessage message(int source, std::uint64_t tag, std::uint64_t bytes) {
  return {source, tag, 0, bytes, true, {}};
}

TEST(MatchQueue, AMessageMatchesTheFirstPostedReceiveThatWantsIt) {
  MatchQueue queue;
  const P2pWorkPtr other_tag = receive(1, 8);
  const P2pWorkPtr other_source = receive(2, 7);
  const P2pWorkPtr any = receive(kAnySource, 7);
  const P2pWorkPtr exact = receive(1, 7);
  for (const P2pWorkPtr& each : {other_tag, other_source, any, exact}) queue.post(each);
  EXPECT_EQ(queue.take_receive(1, 7), any);
  EXPECT_EQ(queue.take_receive(1, 7), exact);
  EXPECT_EQ(queue.take_receive(1, 7), nullptr);
  EXPECT_EQ(queue.take_receive(2, 7), other_source);
  EXPECT_EQ(queue.take_receive(1, 8), other_tag);
}

TEST(MatchQueue, AReceiveMatchesTheFirstMessageWithItsTag) {
  MatchQueue queue;
  queue.add_unexpected(message(1, 8, 10));
  queue.add_unexpected(message(2, 7, 20));
  queue.add_unexpected(message(1, 7, 30));
  queue.add_unexpected(message(1, 7, 40));
  EXPECT_EQ(queue.take_message(recv(nullptr, 0, 1, 7))->bytes, 30U);
  EXPECT_EQ(queue.take_message(recv(nullptr, 0, kAnySource, 7))->bytes, 20U);
  EXPECT_EQ(queue.take_message(recv(nullptr, 0, kAnySource, 7))->bytes, 40U);
  EXPECT_FALSE(queue.take_message(recv(nullptr, 0, kAnySource, 7)));
  EXPECT_EQ(queue.take_message(recv(nullptr, 0, 1, 8))->bytes, 10U);
}

TEST(MatchQueue, ARemovedReceiveMatchesNothing) {
  MatchQueue queue;
  const P2pWorkPtr first = receive(1, 7);
  const P2pWorkPtr second = receive(1, 7);
  queue.post(first);
  queue.post(second);
  EXPECT_EQ(queue.remove(*first), first);
  EXPECT_EQ(queue.remove(*first), nullptr);
  EXPECT_EQ(queue.take_receive(1, 7), second);
  queue.post(first);
  EXPECT_EQ(queue.take_all_receives().size(), 1U);
  EXPECT_EQ(queue.take_receive(1, 7), nullptr);
}

}  // namespace
}  // namespace tccl
