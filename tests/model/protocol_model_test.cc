// The shared-memory protocol under the explorer: step reuse, wake-ups, departures, failure marks and
// zero copy. The includes of .cc files are the code under test: this file is compiled with
// -fsanitize=thread, all else of the library comes as it is built.
//
// weakenings.toml lists changes to that code, each of which one of these tests must notice.
// TCCL_MODEL_DEPTH=<n> explores n more preemptions and old values in each execution, for a minute per
// test.
#include "algorithms/allgather_one_shot.cc"
#include "algorithms/allreduce_zero_copy.cc"
#include "algorithms/broadcast_one_shot.cc"
#include "algorithms/reduce_one_shot.cc"
#include "algorithms/task.cc"
#include "communicator/executor.cc"
#include "transport/shm/local_group.cc"
#include "transport/shm/shm_board.cc"
#include "transport/shm/shm_board_errors.cc"
#include "transport/shm/shm_link.cc"
#include "transport/shm/tensor_heap.cc"
// ---
#include <gtest/gtest.h>

#include <cstdlib>

#include "model/protocol_host.h"

namespace tccl::model {
namespace {

using namespace std::chrono_literals;

int depth() {
  const char* text = std::getenv("TCCL_MODEL_DEPTH");
  return text == nullptr ? 0 : std::atoi(text);
}

Bounds bounds(int preemptions, int stale_reads) {
  return {.preemptions = preemptions + depth(),
          .stale_reads = stale_reads + depth(),
          .time = depth() == 0 ? 300s : 60s};
}

const Host& host_of(int ranks) {
  ::setenv("CCL_WORKER_COUNT", "0", 0);
  ::setenv("CCL_LOG_LEVEL", "error", 0);
  static const Host two(2);
  static const Host three(3);
  return ranks == 2 ? two : three;
}

void expect_no_violation(const Outcome& outcome) {
  EXPECT_EQ(outcome.violation, "") << outcome.trace;
  EXPECT_TRUE(outcome.complete || depth() > 0);
  std::printf("%zu executions%s\n", outcome.executions, outcome.complete ? ", all" : "");
}

OpRecord record(std::uint32_t sequence, Op op = Op::allgather) {
  OpRecord record;
  record.sequence = sequence;
  record.op = op;
  record.digest = next_digest(sequence, record);
  return record;
}

// ---- steps ----

std::uint64_t& value_at(std::byte* memory) { return *reinterpret_cast<std::uint64_t*>(memory); }
std::uint64_t value_at(const std::byte* memory) {
  return *reinterpret_cast<const std::uint64_t*>(memory);
}

void write_step(const Board::Slot& slot, int rank, std::uint32_t step) {
  const std::uint64_t value = 1 + 16 * step + static_cast<std::uint64_t>(rank);
  value_at(slot.inline_data) = value;
  value_at(slot.input) = value;
  value_at(slot.result) = value;
}

void check_step(const Board::PeerSlot& slot, int rank, std::uint32_t step) {
  const std::uint64_t value = 1 + 16 * step + static_cast<std::uint64_t>(rank);
  require(value_at(slot.inline_data) == value, "inline data of another step");
  require(value_at(slot.input) == value, "input of another step");
  require(value_at(slot.result) == value, "result of another step");
}

/// Rank 0 reads nothing: only open_step() makes it wait. The others read as late as the rules of
/// board.h allow.
void run_steps(Group& group, int rank, int ranks, std::uint32_t steps) {
  shm::ShmBoard& board = group.board(rank);
  board.begin(record(0xffffffff), std::nullopt, 1h);
  for (std::uint32_t step = 0; step <= steps; ++step) {
    if (step < steps) {
      write_step(board.open_step(), rank, step);
      board.post();
    }
    for (int peer = 0; rank > 0 && step > 0 && peer < ranks; ++peer)
      if (peer != rank) check_step(board.await(peer, step - 1), peer, step - 1);
  }
  board.end();
}

Outcome explore_steps(const Bounds& bounds, int ranks, std::uint32_t steps) {
  const Host& host = host_of(ranks);
  return explore(bounds, [&](Execution& execution) {
    Group group(host, execution);
    for (int rank = 0; rank < ranks; ++rank)
      execution.add_thread("rank " + std::to_string(rank),
                           [&, rank] { run_steps(group, rank, ranks, steps); });
    execution.join();
  });
}

TEST(ProtocolModel, StepsOfTwoRanks) { expect_no_violation(explore_steps(bounds(2, 1), 2, 5)); }
TEST(ProtocolModel, StepsOfThreeRanks) { expect_no_violation(explore_steps(bounds(1, 0), 3, 5)); }

// ---- operations ----

/// Of real algorithms, with data in slots: the ranks call one after another.
Outcome explore_operations(const Bounds& bounds, int ranks,
                           const std::function<void(Executor&, int rank)>& body) {
  const Host& host = host_of(ranks);
  return explore(bounds, [&](Execution& execution) {
    Group group(host, execution);
    for (int rank = 0; rank < ranks; ++rank)
      execution.add_thread("rank " + std::to_string(rank),
                           [&, rank] { body(group.executor(rank), rank); });
    execution.join();
  });
}

constexpr std::size_t kCount = 48;  // three chunks of 64 bytes

void broadcast_and_check(Executor& executor, int rank, int root, std::int32_t value) {
  std::vector<std::int32_t> data(kCount, rank == root ? value : 0);
  executor.run(broadcast(data.data(), kCount, DType::int32, root), 1h);
  require(data.front() == value && data.back() == value, "the result of the broadcast");
}

/// A root does not wait for its readers: it runs ahead, into the next operation too.
TEST(ProtocolModel, BroadcastsFromAlternatingRoots) {
  expect_no_violation(explore_operations(bounds(1, 1), 2, [](Executor& executor, int rank) {
    broadcast_and_check(executor, rank, 0, 7);
    broadcast_and_check(executor, rank, 0, 8);
    broadcast_and_check(executor, rank, 1, 9);
  }));
}

TEST(ProtocolModel, AllreducesOfTwoRanks) {
  expect_no_violation(explore_operations(bounds(1, 1), 2, [](Executor& executor, int rank) {
    for (std::int32_t value = 1; value <= 2; ++value) {
      std::vector<std::int32_t> data(kCount, value << rank);
      executor.run(allreduce(data.data(), data.data(), kCount, DType::int32, ReduceOp::sum), 1h);
      require(data.front() == 3 * value && data.back() == 3 * value, "the sum");
    }
  }));
}

/// Rank 1 posts its steps and reads those of rank 0 later; rank 0 runs ahead.
TEST(ProtocolModel, PostedBroadcasts) {
  constexpr std::size_t kOperations = 6;
  using Data = std::array<std::int32_t, 16>;
  expect_no_violation(explore_operations(bounds(2, 1), 2, [](Executor& executor, int rank) {
    std::array<Data, kOperations> data{};
    std::array<Operation, kOperations> operations;
    std::size_t completed = 0;
    const auto check = [&] {
      const Data& got = data[completed++];
      const auto expected = static_cast<std::int32_t>(completed);
      require(got.front() == expected && got.back() == expected, "the result of the broadcast");
    };
    const auto complete = [&] {
      executor.complete_posted();
      check();
    };
    for (std::size_t i = 0; i < kOperations; ++i) {
      if (rank == 0) data[i].fill(static_cast<std::int32_t>(i) + 1);
      operations[i] = broadcast(data[i].data(), data[i].size(), DType::int32, 0);
      if (rank == 1 && executor.try_post(operations[i], 1h)) continue;
      while (executor.posted() > 0) complete();
      executor.run(operations[i], 1h);
      check();
    }
    while (executor.posted() > 0) complete();
  }));
}

// ---- departure ----

/// Rank 0 leaves at once after its part of the operation: rank 1 must get the data, not an error.
TEST(ProtocolModel, ARankThatLeavesAfterItsPartDisturbsNobody) {
  const Host& host = host_of(2);
  expect_no_violation(explore(bounds(2, 2), [&](Execution& execution) {
    Group group(host, execution);
    execution.add_thread("rank 0", [&] {
      run_steps(group, 0, 2, 1);  // waits for nobody
      group.local(0).close();
    });
    execution.add_thread("rank 1", [&] {
      try {
        run_steps(group, 1, 2, 1);
      } catch (const Error& error) {
        report_violation(error.what());
      }
    });
    execution.join();
  }));
}

/// Rank 0 leaves instead: rank 1 gets an error, also if it sleeps already.
TEST(ProtocolModel, ARankThatLeavesWithoutItsPartIsNoticed) {
  const Host& host = host_of(2);
  expect_no_violation(explore(bounds(2, 2), [&](Execution& execution) {
    Group group(host, execution);
    execution.add_thread("rank 0", [&] { group.local(0).close(); });
    execution.add_thread("rank 1", [&] {
      try {
        run_steps(group, 1, 2, 1);
      } catch (const Error&) {
        return;
      }
      report_violation("rank 1 read a step that rank 0 has not posted");
    });
    execution.join();
  }));
}

// ---- zero copy: publish, read, acknowledge ----

constexpr std::size_t kPublishedCount = kZeroCopyBytes / sizeof(std::int32_t);

TEST(ProtocolModel, PublishedMemoryMayBeOverwrittenOnceTheOperationHasEnded) {
  const Host& host = host_of(2);
  expect_no_violation(explore(bounds(2, 2), [&](Execution& execution) {
    Group group(host, execution, Explored::everything, kZeroCopyBytes);
    const std::shared_ptr<void> published = group.heap(0).allocate(kZeroCopyBytes);
    auto* values = static_cast<std::int32_t*>(published.get());
    std::fill_n(values, kPublishedCount, 7);
    const auto broadcast_from_0 = [&](int rank, std::int32_t* data) {
      group.executor(rank).run(broadcast(data, kPublishedCount, DType::int32, 0), 1h);
    };
    execution.add_thread("rank 0", [&] {
      broadcast_from_0(0, values);
      values[0] = 8;
    });
    execution.add_thread("rank 1", [&] {
      std::vector<std::int32_t> got(kPublishedCount);
      broadcast_from_0(1, got.data());
      require(got.front() == 7 && got.back() == 7, "memory changed while it was read");
    });
    execution.join();
  }));
}

// ---- failure marks ----

/// As the executor: what follows a failed operation.
void fail(Group& group, int rank, const Error& error) {
  static_cast<void>(group.membership(rank).fail(error));
  group.board(rank).fail();
}

/// The accesses to published memory after a failure race on purpose, and plain accesses may return
/// what relaxed ones may.
using Published = std::atomic<std::uint32_t>;

/// Publishes memory in a step of rank 0.
void publish(shm::ShmBoard& board, const Published& memory, std::chrono::milliseconds timeout) {
  board.begin(record(0xffffffff, Op::broadcast), std::nullopt, timeout);
  const Board::Slot slot = board.open_step();
  value_at(slot.inline_data) = board.publish_in_place(&memory, sizeof memory, Board::kEveryone);
  board.post();
}

/// Waits for the readers, or gives up because of its timeout or another rank's mark. In both cases
/// the memory is the caller's again.
void end_publishing(Group& group, Published& memory) {
  try {
    group.board(0).end();
  } catch (const Error& error) {
    fail(group, 0, error);
  }
  memory.store(8, std::memory_order_relaxed);
}

void post_nothing(shm::ShmBoard& board) {
  board.begin(record(0xffffffff, Op::broadcast), std::nullopt, 1h);
  board.open_step();
  board.post();
}

void read_published(Group& group, int rank) {
  shm::ShmBoard& board = group.board(rank);
  try {
    const Board::PeerSlot slot = board.await(0, 0);
    const std::byte* memory = board.read_in_place(0, value_at(slot.inline_data));
    const auto value = reinterpret_cast<const Published*>(memory)->load(std::memory_order_relaxed);
    board.end();
    require(value == 7, "changed memory was taken for data");
  } catch (const Error& error) {
    fail(group, rank, error);
  }
}

/// Memory in the heap of rank 0.
struct PublishedMemory {
  explicit PublishedMemory(const Group& group)
      : owner(group.heap(0).allocate(page_bytes())), value(*new (owner.get()) Published(7)) {}
  std::shared_ptr<void> owner;
  Published& value;
};

TEST(ProtocolModel, NobodyTakesMemoryOfAPublisherThatGaveUpForData) {
  const Host& host = host_of(2);
  expect_no_violation(explore(bounds(2, 2), [&](Execution& execution) {
    Group group(host, execution);
    const PublishedMemory memory(group);
    execution.add_thread("rank 0", [&] {
      publish(group.board(0), memory.value, 0ms);
      end_publishing(group, memory.value);
    });
    execution.add_thread("rank 1", [&] {
      post_nothing(group.board(1));
      read_published(group, 1);
    });
    execution.join();
  }));
}

/// Rank 2 fails by itself and marks the others: rank 0 then gives up because of a mark that it has
/// not set itself. All have posted before.
TEST(ProtocolModel, NorIfAThirdRankMarkedThePublisher) {
  const Host& host = host_of(3);
  expect_no_violation(explore(bounds(2, 2), [&](Execution& execution) {
    Group group(host, execution);
    const PublishedMemory memory(group);
    publish(group.board(0), memory.value, 1h);
    post_nothing(group.board(1));
    execution.add_thread("rank 0", [&] { end_publishing(group, memory.value); });
    execution.add_thread("rank 1", [&] { read_published(group, 1); });
    execution.add_thread("rank 2",
                         [&] { fail(group, 2, Error(Errc::aborted, "rank 2 failed", {2})); });
    execution.join();
  }));
}

// ---- zero copy: detached memory ----

constexpr std::size_t kReducedCount = (std::size_t{256} << 10) / sizeof(std::int32_t);

/// Values of the heap, accessed without the explorer, as by the library's kernels.
class Tensor {
 public:
  Tensor(const Group& group, int rank, std::int32_t value)
      : memory_(group.heap(rank).allocate(kReducedCount * sizeof value)) {
    fill(value);
  }
  [[nodiscard]] std::int32_t* data() const { return static_cast<std::int32_t*>(memory_.get()); }
  __attribute__((no_sanitize("thread"))) void fill(std::int32_t value) const {
    std::int32_t* values = data();
    for (std::size_t i = 0; i < kReducedCount; ++i) values[i] = value;
  }
  [[nodiscard]] __attribute__((no_sanitize("thread"))) bool is_all(std::int32_t value) const {
    const std::int32_t* values = data();
    std::int32_t differences = 0;
    for (std::size_t i = 0; i < kReducedCount; ++i) differences |= values[i] ^ value;
    return differences == 0;
  }

 private:
  std::shared_ptr<void> memory_;
};

/// An all-reduce of one rank: 1 + 2.
struct Reduction {
  Reduction(Group& group, int rank)
      : executor(group.executor(rank)), in(group, rank, rank + 1), out(group, rank, 0) {}

  void run(std::chrono::milliseconds timeout) {
    try {
      executor.run(allreduce(in.data(), out.data(), kReducedCount, DType::int32, ReduceOp::sum),
                   timeout);
      require(out.is_all(3), "the sum");
    } catch (const Error&) {
      in.fill(8);
      out.fill(8);
      failed = true;
    }
  }
  Executor& executor;
  Tensor in;
  Tensor out;
  bool failed = false;
};

/// Rank 0 gives up early or late; rank 1 goes on writing into rank 0's output. Rank 0 must not see
/// that after its error, nor rank 1 what rank 0 wrote then.
TEST(ProtocolModel, NobodyWritesToATensorAfterItsOperationHasFailed) {
  const Host& host = host_of(2);
  expect_no_violation(explore(bounds(2, 0), [&](Execution& execution) {
    Group group(host, execution, Explored::protocol, 64 << 10);
    std::array ranks{Reduction(group, 0), Reduction(group, 1)};
    execution.add_thread("rank 0", [&] { ranks[0].run(0ms); });
    execution.add_thread("rank 1", [&] { ranks[1].run(1h); });
    execution.join();
    for (const Reduction& rank : ranks)
      if (rank.failed)
        require(rank.out.is_all(8), "a late rank wrote to the tensor of a failed operation");
  }));
}

// ---- point to point ----

void wait_for(Group& group, int rank, const std::function<bool()>& ready) {
  sleep_until(DoorbellSleeper(group.local(rank).mine().p2p_doorbell), ready, [] { return false; });
}

/// More cells than the ring has.
TEST(ProtocolModel, CellsOfARing) {
  constexpr std::uint64_t kSent = shm::kCells + 2;
  const Host& host = host_of(2);
  expect_no_violation(explore(bounds(1, 1), [&](Execution& execution) {
    Group group(host, execution);
    execution.add_thread("sender", [&] {
      shm::ShmLink link(group.local(0), 1, 64);
      for (std::uint64_t i = 0; i < kSent; ++i) {
        wait_for(group, 0, [&] { return link.has_room(); });
        link.post({CellKind::eager, sizeof i, 0, i, sizeof i}, &i);
        if (i % 8 == 7 || i + 1 == kSent) link.wake_peer();
      }
    });
    execution.add_thread("receiver", [&] {
      shm::ShmLink link(group.local(1), 0, 64);
      std::uint64_t next = 0;
      while (next < kSent)
        wait_for(group, 1, [&] {
          return link.take([&](const CellHeader& header, const std::byte* payload) {
            require(header.message_id == next && value_at(payload) == next, "another cell");
            ++next;
          });
        });
    });
    execution.join();
  }));
}

}  // namespace
}  // namespace tccl::model
