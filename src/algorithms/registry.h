// The table of algorithms: one file and one row each. Which one runs is said in choose.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "algorithms/call.h"
#include "transport/board.h"
#include "transport/wire.h"

namespace tccl {

struct Algorithm {
  Op op;
  const char* name;
  const char* doc;
  void (*run)(Board&, const Call&);  // among the ranks of one host, or
  void (*run_over_hosts)(Board&, Wire&, const Call&) = nullptr;
};

std::span<const Algorithm> algorithms();
const Algorithm& algorithm(std::uint8_t index);
std::uint8_t index_of(const Algorithm& algorithm);

void barrier_direct(Board& board, const Call& call);
void broadcast_direct(Board& board, const Call& call);
void allreduce_direct(Board& board, const Call& call);
void allreduce_pipelined(Board& board, const Call& call);
void reduce_direct(Board& board, const Call& call);
void reduce_pipelined(Board& board, const Call& call);
void allgather_direct(Board& board, const Call& call);
void gather_direct(Board& board, const Call& call);
void scatter_direct(Board& board, const Call& call);
void alltoall_direct(Board& board, const Call& call);
void gatherv_direct(Board& board, const Call& call);
void scatterv_direct(Board& board, const Call& call);
void alltoallv_direct(Board& board, const Call& call);
void reduce_scatter_direct(Board& board, const Call& call);

void barrier_exchange(Board& board, Wire& wire, const Call& call);
void allreduce_exchange(Board& board, Wire& wire, const Call& call);
void allreduce_lanes(Board& board, Wire& wire, const Call& call);
void reduce_lanes(Board& board, Wire& wire, const Call& call);
void reduce_scatter_lanes(Board& board, Wire& wire, const Call& call);
void broadcast_relay(Board& board, Wire& wire, const Call& call);
void allgather_lanes(Board& board, Wire& wire, const Call& call);
void exchange_pairs(Board& board, Wire& wire, const Call& call);

}  // namespace tccl
