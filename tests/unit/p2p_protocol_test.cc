// P2pProtocol: cells that no correct rank sends fail the group. Dropped, they would stall a message.
#include "communicator/p2p_protocol.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "transport/shm/shm_link.h"
#include "unit/local_groups.h"

namespace tccl {
namespace {

constexpr std::size_t kEagerBytes = 1024;
constexpr std::uint64_t kTag = 7;
constexpr std::uint64_t kMessageId = 5;

/// Rank 0 runs the protocol; the test posts the cells of rank 1.
class MalformedCells : public ::testing::Test {
 protected:
  P2pWorkPtr receive(std::size_t bytes) {
    memory_.assign(bytes, std::byte{1});
    auto work = std::make_shared<P2pWork>(nullptr, recv(memory_.data(), bytes, 1, kTag),
                                          Communicator::CallOptions(), 1);
    protocol.start(work);
    return work;
  }
  void post(const CellHeader& header) {
    const std::vector<std::byte> payload(header.payload_bytes, std::byte{2});
    rank_1.post(header, payload.data());
  }
  /// A receive whose message rank 1 has announced and rank 0 has cleared.
  void start_large_receive(std::size_t bytes) {
    receive(bytes);
    post({CellKind::rts, 0, kTag, kMessageId, bytes});
    protocol.advance();
  }
  void expect_error(const std::string& phrase) {
    try {
      protocol.advance();
      ADD_FAILURE() << "no error: " << phrase;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::system);
      EXPECT_EQ(error.ranks(), std::vector{1});
      EXPECT_NE(std::string(error.what()).find(phrase), std::string::npos) << error.what();
    }
  }

  std::array<shm::FakeProcess, 2> processes;
  shm::LocalGroups groups = shm::make_group(processes, 11);
  Membership membership{groups[0], HostMap(std::vector{0, 0}), {}, nullptr};
  P2pProtocol protocol{*groups[0], membership, nullptr, kEagerBytes};
  shm::ShmLink rank_1{*groups[1], 0, kEagerBytes};

 private:
  std::vector<std::byte> memory_;
};

TEST_F(MalformedCells, AnUnknownKind) {
  post({static_cast<CellKind>(77), 0, kTag, kMessageId, 0});
  expect_error("kind 77");
}

TEST_F(MalformedCells, APayloadLongerThanACell) {
  post({CellKind::eager, kEagerBytes + 8, kTag, 0, kEagerBytes + 8});
  expect_error("longer than a cell");
}

TEST_F(MalformedCells, AnEagerCellWithAPartOfItsMessage) {
  post({CellKind::eager, 8, kTag, 0, 100});
  expect_error("not the whole message");
}

TEST_F(MalformedCells, MoreDataThanTheMessageHas) {
  start_large_receive(100);
  post({CellKind::data, 60, 0, kMessageId, 0});
  protocol.advance();
  post({CellKind::data, 41, 0, kMessageId, 0});
  expect_error("longer than the rest of the message, 40 bytes");
}

TEST_F(MalformedCells, TheCellsOfAMessageCompleteIt) {
  start_large_receive(100);
  post({CellKind::data, 60, 0, kMessageId, 0});
  post({CellKind::data, 40, 0, kMessageId, 0});
  protocol.advance();
  const std::vector<P2pWorkPtr> finished = protocol.take_finished();
  ASSERT_EQ(finished.size(), 1U);
  EXPECT_EQ(finished.front()->pending_error, nullptr);
}

}  // namespace
}  // namespace tccl
