// The table of algorithms: one file and one row each. A row says what runs the collective and when
// it is chosen by default; planner/ applies the rules and the settings that override them.
//
// To add an all-gather "ring": write allgather_ring.cc, declare its function here, add a row to
// registry.cc. For an all-gather or reduce-scatter add a second row, for the v-form: torch's list
// calls use that one. Tests, docs and CCL_ALLGATHER=ring read the table. A row without rules runs
// only if a setting names it: compare it by settings first, then give it rules.
//
// An algorithm for one host may take Phases: then an asynchronous operation of one step contributes
// when it is issued, and completes later without another thread (docs/threads.md, "Posted
// operations").
//
// Thread safety: the table is constant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "algorithms/task.h"
#include "transport/board.h"
#include "transport/network_channel.h"

namespace tccl {

/// Which parts of an operation to run. To contribute is to write and post this rank's steps; it waits
/// for no peer if the slots are free. To complete is to await the steps of the peers and to write
/// the output.
struct Phases {
  bool contribute = true;
  bool complete = true;
};

/// The function of an algorithm for ranks of one host.
class LocalFunction {
 public:
  using Whole = void (*)(Board&, const CollectiveTask&);
  using Phased = void (*)(Board&, const CollectiveTask&, Phases);
  constexpr LocalFunction(std::nullptr_t /*over several hosts only*/) {}
  constexpr LocalFunction(Whole function) : whole_(function) {}
  constexpr LocalFunction(Phased function) : phased_(function) {}

  void operator()(Board& board, const CollectiveTask& task) const {
    phased_ != nullptr ? phased_(board, task, {}) : whole_(board, task);
  }
  [[nodiscard]] bool has_phases() const { return phased_ != nullptr; }
  /// Requires has_phases().
  void run_phases(Board& board, const CollectiveTask& task, Phases phases) const {
    phased_(board, task, phases);
  }

 private:
  Whole whole_ = nullptr;
  Phased phased_ = nullptr;
};

struct Algorithm {
  /// When the algorithm is the default: for groups of at least `from_ranks` ranks and data of at
  /// least `from_bytes`; `float8_only`: only for float8 types.
  struct Rule {
    std::size_t from_bytes = 0;
    int from_ranks = 1;
    bool float8_only = false;
  };
  Op op;
  const char* name;
  const char* doc;
  LocalFunction run;  // for groups on one host; or
  void (*run_over_hosts)(Board&, NetworkChannel&, const CollectiveTask&) = nullptr;
  std::span<const Rule> rules = {};
};

/// The table. Of the rows of one operation that have a rule that applies, the last row is the
/// default.
std::span<const Algorithm> algorithms();
const Algorithm& algorithm(std::uint8_t index);
std::uint8_t index_of(const Algorithm& algorithm);

void barrier_one_shot(Board& board, const CollectiveTask& task, Phases phases);
void broadcast_one_shot(Board& board, const CollectiveTask& task, Phases phases);
void allreduce_one_shot(Board& board, const CollectiveTask& task, Phases phases);
void allreduce_two_shot(Board& board, const CollectiveTask& task);
void reduce_one_shot(Board& board, const CollectiveTask& task, Phases phases);
void reduce_two_shot(Board& board, const CollectiveTask& task);
void allgather_one_shot(Board& board, const CollectiveTask& task, Phases phases);
void gather_one_shot(Board& board, const CollectiveTask& task);
void scatter_one_shot(Board& board, const CollectiveTask& task);
void alltoall_one_shot(Board& board, const CollectiveTask& task);
void gatherv_one_shot(Board& board, const CollectiveTask& task);
void scatterv_one_shot(Board& board, const CollectiveTask& task);
void alltoallv_one_shot(Board& board, const CollectiveTask& task);
void reduce_scatter_one_shot(Board& board, const CollectiveTask& task, Phases phases);

void barrier_leader_allgather(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void allreduce_leader_allgather(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void allreduce_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void reduce_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void reduce_scatter_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void broadcast_tree(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void allgather_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void alltoall_linear(Board& board, NetworkChannel& channel, const CollectiveTask& task);

}  // namespace tccl
