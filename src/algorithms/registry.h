// The table of algorithms: one file and one row each. A row says what runs the collective and when
// it is chosen by default; planner/ applies the rules and the settings that override them.
//
// To add an all-gather "ring": write allgather_ring.cc, declare its function here, add a row to
// registry.cc. For an all-gather or reduce-scatter add a second row, for the v-form: torch's list
// calls use that one. Tests, docs and CCL_ALLGATHER=ring read the table. A row without rules runs
// only if a setting names it: compare it by settings first, then give it rules.
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
  void (*run)(Board&, const CollectiveTask&);  // for groups on one host; or
  void (*run_over_hosts)(Board&, NetworkChannel&, const CollectiveTask&) = nullptr;
  std::span<const Rule> rules = {};
};

/// The table. Of the rows of one operation that have a rule that applies, the last row is the
/// default.
std::span<const Algorithm> algorithms();
const Algorithm& algorithm(std::uint8_t index);
std::uint8_t index_of(const Algorithm& algorithm);

void barrier_one_shot(Board& board, const CollectiveTask& task);
void broadcast_one_shot(Board& board, const CollectiveTask& task);
void allreduce_one_shot(Board& board, const CollectiveTask& task);
void allreduce_two_shot(Board& board, const CollectiveTask& task);
void reduce_one_shot(Board& board, const CollectiveTask& task);
void reduce_two_shot(Board& board, const CollectiveTask& task);
void allgather_one_shot(Board& board, const CollectiveTask& task);
void gather_one_shot(Board& board, const CollectiveTask& task);
void scatter_one_shot(Board& board, const CollectiveTask& task);
void alltoall_one_shot(Board& board, const CollectiveTask& task);
void gatherv_one_shot(Board& board, const CollectiveTask& task);
void scatterv_one_shot(Board& board, const CollectiveTask& task);
void alltoallv_one_shot(Board& board, const CollectiveTask& task);
void reduce_scatter_one_shot(Board& board, const CollectiveTask& task);

void barrier_leader_allgather(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void allreduce_leader_allgather(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void allreduce_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void reduce_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void reduce_scatter_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void broadcast_tree(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void allgather_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void alltoall_linear(Board& board, NetworkChannel& channel, const CollectiveTask& task);

}  // namespace tccl
