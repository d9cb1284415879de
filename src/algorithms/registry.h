// The table of algorithms: one file and one row each. Which one runs is said in choose.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "algorithms/task.h"
#include "transport/board.h"
#include "transport/network_channel.h"

namespace tccl {

struct Algorithm {
  Op op;
  const char* name;
  const char* doc;
  void (*run)(Board&, const CollectiveTask&);  // among the ranks of one host, or
  void (*run_over_hosts)(Board&, NetworkChannel&, const CollectiveTask&) = nullptr;
};

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

void barrier_leader_alltoall(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void allreduce_leader_alltoall(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void allreduce_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void reduce_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void reduce_scatter_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void broadcast_tree(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void allgather_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task);
void alltoall_pairwise(Board& board, NetworkChannel& channel, const CollectiveTask& task);

}  // namespace tccl
