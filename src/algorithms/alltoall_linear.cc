// Linear exchange over hosts, for gather, scatter and all-to-all (alltoall.h): every pair of ranks
// on different hosts exchanges its data directly, and all pairs at once, because each byte has to
// cross the network once in any algorithm. Ranks of the same host use the one-shot exchange through
// the board.
//
// The data of a pair is sent in chunks; kChunksAhead chunks of each pair are in flight. Each
// message starts with the total size of the pair's data, so that a size mismatch is detected on
// receipt.
#include <cstring>
#include <deque>

#include "algorithms/alltoall.h"
#include "algorithms/partition.h"
#include "algorithms/registry.h"
#include "base/format.h"
#include "tccl/error.h"

namespace tccl {
namespace {

constexpr std::size_t kTotalBytes = sizeof(std::uint64_t);
constexpr std::size_t kChunkBytes = NetworkChannel::kMaxMessageBytes - kTotalBytes;
/// Chunks of each pair in flight.
constexpr std::uint32_t kChunksAhead = 3;

class LinearExchange {
 public:
  LinearExchange(Board& board, NetworkChannel& channel, const CollectiveTask& task)
      : board_(board),
        channel_(channel),
        host_map_(channel.host_map()),
        task_(task),
        rank_(channel.rank()) {
    for (int k = 1; k < host_map_.ranks(); ++k) {  // each rank starts with another peer
      const int to = (rank_ + k) % host_map_.ranks();
      const int from = (rank_ - k + host_map_.ranks()) % host_map_.ranks();
      if (!host_map_.same_host(rank_, to) && sends_to(task, rank_, to)) receivers_.push_back(to);
      if (!host_map_.same_host(rank_, from) && sends_to(task, from, rank_))
        senders_.push_back(from);
    }
  }

  void run() {
    std::uint32_t chunks = 0;
    for (const int to : receivers_) chunks = std::max(chunks, count(outgoing(task_, to).size()));
    for (const int from : senders_) chunks = std::max(chunks, count(incoming(task_, from).size()));
    for (std::uint32_t i = 0; i < std::min(kChunksAhead, chunks); ++i) send(i);
    exchange_locally();
    for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
      if (chunk + kChunksAhead < chunks) send(chunk + kChunksAhead);
      for (const int from : senders_)
        if (chunk < count(incoming(task_, from).size())) receive(from, chunk);
      channel_.flush(2 * kChunksAhead * receivers_.size());
    }
  }

 private:
  /// Chunks of a pair: at least one, so that the sizes are compared also if they are zero.
  static std::uint32_t count(std::size_t bytes) { return steps_for(bytes, kChunkBytes); }

  void send(std::uint32_t chunk) {
    for (const int from : senders_)
      if (chunk < count(incoming(task_, from).size()))
        receives_.push_back(channel_.post_receive(from));
    for (const int to : receivers_) {
      const auto data = outgoing(task_, to);
      if (chunk >= count(data.size())) continue;
      const Range range = chunk_range(data.size(), kChunkBytes, chunk);
      const NetworkChannel::MessagePtr message = channel_.acquire();
      const std::uint64_t total = data.size();
      std::memcpy(message->data(), &total, sizeof total);
      task_.copy(message->data() + kTotalBytes, data.data() + range.begin, range.count);
      channel_.send(message, kTotalBytes + range.count, to);
    }
  }

  void receive(int from, std::uint32_t chunk) {
    const auto target = incoming(task_, from);
    const NetworkChannel::MessagePtr message = std::move(receives_.front());
    receives_.pop_front();
    const std::size_t length = channel_.received_bytes(message);
    std::uint64_t total = 0;
    std::memcpy(&total, message->data(), std::min(length, sizeof total));
    const Range range = chunk_range(target.size(), kChunkBytes, chunk);
    if (total != target.size() || length != kTotalBytes + range.count)
      throw Error(Errc::mismatch,
                  formatted("{}: rank {} sends {} bytes to rank {}, which expects {}",
                            board_.operation(), from, total, rank_, target.size()),
                  {from, rank_});
    task_.copy_out(target.data() + range.begin, message->data() + kTotalBytes, range.count,
                   target.size());
  }

  /// The exchange among the ranks of this host, as an alltoallv of bytes.
  void exchange_locally() {
    std::vector<ConstBlock> in;
    std::vector<Block> out;
    for (const int other : host_map_.ranks_of(host_map_.host_of(rank_))) {
      in.push_back({nullptr, 0});
      out.push_back({nullptr, 0});
      if (sends_to(task_, rank_, other)) {
        const auto data = outgoing(task_, other);
        in.back() = {data.data(), data.size()};
      }
      if (sends_to(task_, other, rank_)) {
        const auto data = incoming(task_, other);
        out.back() = {data.data(), data.size()};
      }
    }
    const Operation local = alltoallv(in, out, DType::uint8);
    alltoallv_one_shot(board_, CollectiveTask(local, task_.workers()));
  }

  Board& board_;
  NetworkChannel& channel_;
  const HostMap& host_map_;
  const CollectiveTask& task_;
  int rank_;
  std::vector<int> receivers_;
  std::vector<int> senders_;
  std::deque<NetworkChannel::MessagePtr> receives_;  // posted, in the order of receive()
};

}  // namespace

void alltoall_linear(Board& board, NetworkChannel& channel, const CollectiveTask& task) {
  LinearExchange(board, channel, task).run();
}

}  // namespace tccl
