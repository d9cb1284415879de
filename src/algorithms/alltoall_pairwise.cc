// Gather, scatter and all-to-all over hosts: every pair of ranks on different hosts exchanges its
// bytes by itself, since each byte has to cross once anyway; the ranks of one host do as they do
// without other hosts. Each message says how many bytes the pair exchanges in all, so that ranks
// which disagree find out.
#include <cstring>
#include <deque>

#include "algorithms/alltoall.h"
#include "algorithms/patterns.h"
#include "algorithms/registry.h"
#include "base/format.h"
#include "tccl/error.h"

namespace tccl {
namespace {

constexpr std::size_t kTotalBytes = sizeof(std::uint64_t);
constexpr std::size_t kPieceBytes = NetworkChannel::kMaxMessageBytes - kTotalBytes;
/// Pieces of each pair that are on their way.
constexpr std::uint32_t kAhead = 3;

class Pairs {
 public:
  Pairs(Board& board, NetworkChannel& channel, const CollectiveTask& task)
      : board_(board),
        channel_(channel),
        host_map_(channel.host_map()),
        task_(task),
        rank_(channel.rank()) {
    for (int k = 1; k < host_map_.ranks(); ++k) {  // not all to the same rank at once
      const int to = (rank_ + k) % host_map_.ranks();
      const int from = (rank_ - k + host_map_.ranks()) % host_map_.ranks();
      if (!host_map_.same_host(rank_, to) && takes_part(task, rank_, to)) receivers_.push_back(to);
      if (!host_map_.same_host(rank_, from) && takes_part(task, from, rank_))
        senders_.push_back(from);
    }
  }

  void run() {
    std::uint32_t rounds = 0;
    for (const int to : receivers_) rounds = std::max(rounds, count(outgoing(task_, to).size()));
    for (const int from : senders_) rounds = std::max(rounds, count(incoming(task_, from).size()));
    for (std::uint32_t i = 0; i < std::min(kAhead, rounds); ++i) send(i);
    exchange_here();
    for (std::uint32_t round = 0; round < rounds; ++round) {
      if (round + kAhead < rounds) send(round + kAhead);
      for (const int from : senders_)
        if (round < count(incoming(task_, from).size())) take(from, round);
      channel_.flush(2 * kAhead * receivers_.size());
    }
  }

 private:
  /// Also a pair that has nothing for each other exchanges that.
  static std::uint32_t count(std::size_t bytes) { return steps_for(bytes, kPieceBytes); }

  void send(std::uint32_t round) {
    for (const int from : senders_)
      if (round < count(incoming(task_, from).size()))
        expected_.push_back(channel_.post_receive(from));
    for (const int to : receivers_) {
      const auto data = outgoing(task_, to);
      if (round >= count(data.size())) continue;
      const Range piece = tccl::piece(data.size(), kPieceBytes, round);
      const NetworkChannel::MessagePtr message = channel_.acquire();
      const std::uint64_t total = data.size();
      std::memcpy(message->data(), &total, sizeof total);
      task_.copy(message->data() + kTotalBytes, data.data() + piece.begin, piece.count);
      channel_.send(message, kTotalBytes + piece.count, to);
    }
  }

  void take(int from, std::uint32_t round) {
    const auto target = incoming(task_, from);
    const NetworkChannel::MessagePtr message = std::move(expected_.front());
    expected_.pop_front();
    const std::size_t length = channel_.received_bytes(message);
    std::uint64_t total = 0;
    std::memcpy(&total, message->data(), std::min(length, sizeof total));
    const Range piece = tccl::piece(target.size(), kPieceBytes, round);
    if (total != target.size() || length != kTotalBytes + piece.count)
      throw Error(Errc::mismatch,
                  formatted("{}: rank {} sends {} bytes to rank {}, which expects {}",
                            board_.operation(), from, total, rank_, target.size()),
                  {from, rank_});
    task_.copy_out(target.data() + piece.begin, message->data() + kTotalBytes, piece.count,
                   target.size());
  }

  /// Among the ranks of this host, as an exchange of bytes.
  void exchange_here() {
    std::vector<ConstBlock> in;
    std::vector<Block> out;
    for (const int other : host_map_.ranks_of(host_map_.host_of(rank_))) {
      in.push_back({nullptr, 0});
      out.push_back({nullptr, 0});
      if (takes_part(task_, rank_, other)) {
        const auto data = outgoing(task_, other);
        in.back() = {data.data(), data.size()};
      }
      if (takes_part(task_, other, rank_)) {
        const auto data = incoming(task_, other);
        out.back() = {data.data(), data.size()};
      }
    }
    const Operation here = alltoallv(in, out, DType::uint8);
    alltoallv_one_shot(board_, CollectiveTask(here, task_.workers()));
  }

  Board& board_;
  NetworkChannel& channel_;
  const HostMap& host_map_;
  const CollectiveTask& task_;
  int rank_;
  std::vector<int> receivers_;
  std::vector<int> senders_;
  std::deque<NetworkChannel::MessagePtr> expected_;  // in the order in which they are taken
};

}  // namespace

void alltoall_pairwise(Board& board, NetworkChannel& channel, const CollectiveTask& task) {
  Pairs(board, channel, task).run();
}

}  // namespace tccl
