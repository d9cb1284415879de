// Cuts a collective into smaller ones that together do the same, so that copies between an
// accelerator and the host overlap with them. Pure functions, safe from any thread.
#pragma once

#include <cstddef>
#include <vector>

#include "tccl/operation.h"

namespace torch_ccl {

/// Of this process in its group.
struct Place {
  int rank, size;
};

struct Piece {
  tccl::Operation operation;
  std::vector<tccl::ConstBlock> in_blocks{};  // what the operation's spans refer to
  std::vector<tccl::Block> out_blocks{};
};

/// Every rank cuts alike, at the same elements. Where a rank does not know the sizes of the others
/// (alltoall, gather, scatter, messages) it could not, so these stay whole.
std::vector<Piece> cut(const tccl::Operation& whole, Place place, std::size_t piece_bytes);

struct Extent {
  const void* data;
  std::size_t bytes;
};
/// The memory that this rank's share of an operation reads, and what it writes; some of it may be
/// empty.
std::vector<Extent> read_by(const tccl::Operation& operation, Place place);
std::vector<Extent> written_by(const tccl::Operation& operation, Place place);

}  // namespace torch_ccl
