// Which messages to a process's data port are kept for its groups.
#include "transport/ofi/network.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <deque>

#include "control_node.h"

namespace tccl::ofi {
namespace {

class NetworkTest : public ::testing::Test {
 protected:
  NetworkTest() { network_.endpoint().add_peer(sender_.address()); }

  /// Sends a cell without payload.
  void send(std::uint64_t group_uid, std::uint32_t group_tag) {
    std::vector<std::byte>& data = sent_.emplace_back(MessageBuffer::kHeaderBytes);
    const CellAddress address{group_uid, group_tag, 1};
    std::memcpy(data.data(), &address, sizeof address);
    const std::uint64_t tag = tag_of(group_tag, TrafficKind::point_to_point, 0);
    Request& request = requests_.emplace_back();
    ASSERT_TRUE(eventually([&] {
      progress();
      return sender_.send(receiver_, tag, data, request);
    }));
  }
  void progress() {
    sender_.progress();
    network_.progress();
  }

  std::unique_ptr<ProcessPage> page_ = std::make_unique<ProcessPage>();
  Monitor monitor_{*page_, [] {}};
  Settings settings_{.liveness_timeout = 5s};
  Network network_{monitor_,
                   {.settings = &settings_,
                    .address = "127.0.0.1",
                    .self = {.id = random_bytes32(), .host = "a", .pid = ::getpid()}}};
  Endpoint sender_{{.provider = "tcp", .address = "127.0.0.1"}};
  fi_addr_t receiver_ = sender_.add_peer(network_.endpoint().address());

 private:
  std::deque<std::vector<std::byte>> sent_;
  std::deque<Request> requests_;
};

TEST_F(NetworkTest, CellsThatNameAnotherGroupAreNotKeptForAnIdleOne) {
  const std::uint32_t idle = network_.allocate_group_tag(/*group_uid=*/7);
  const std::uint32_t polled = network_.allocate_group_tag(/*group_uid=*/8);
  send(6, idle);
  send(7, idle);
  send(8, idle);
  send(8, polled);
  ASSERT_TRUE(eventually([&] {
    progress();
    return network_.take_cells(polled).size() == 1;
  }));
  const auto kept = network_.take_cells(idle);
  ASSERT_EQ(kept.size(), 1U);
  CellAddress address;
  std::memcpy(&address, kept.front()->header(), sizeof address);
  EXPECT_EQ(address.group_uid, 7U);
}

/// The receiver does not read, so the last message is sent in part when the sender ends.
TEST_F(NetworkTest, AMessageThatBreaksOffIsNotLogged) {
  const std::uint32_t group = network_.allocate_group_tag(/*group_uid=*/7);
  std::vector<std::byte> cell(MessageBuffer::kBytes);
  const CellAddress address{7, group, 1};
  std::memcpy(cell.data(), &address, sizeof address);
  std::deque<Request> requests;
  auto sender =
      std::make_unique<Endpoint>(Endpoint::Options{.provider = "tcp", .address = "127.0.0.1"});
  network_.endpoint().add_peer(sender->address());
  const fi_addr_t receiver = sender->add_peer(network_.endpoint().address());
  const auto send_one = [&] {
    return sender->send(receiver, tag_of(group, TrafficKind::point_to_point, 0), cell,
                        requests.emplace_back());
  };
  ASSERT_TRUE(eventually([&] {
    network_.progress();
    return send_one();  // once it is connected
  }));
  ASSERT_TRUE(eventually([&] {
    sender->progress();
    return !network_.take_cells(group).empty();
  }));
  while (sender->in_flight_sends() < 1000 && send_one()) sender->progress();
  ASSERT_GT(sender->in_flight_sends(), 10U);
  ::testing::internal::CaptureStderr();
  sender.reset();
  EXPECT_TRUE(eventually([&] {
    network_.take_cells(group);
    return network_.endpoint().connected_hosts().empty();
  }));
  for (int i = 0; i < 100; ++i) network_.take_cells(group);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(log.find("data port"), std::string::npos) << log;
}

}  // namespace
}  // namespace tccl::ofi
