// Splits a collective into chunks that together do the same, so that copies between an accelerator
// and the host overlap with the communication.
//
//   for (const Chunk& chunk : split_into_chunks(operation, {rank, size}, staging_bytes)) {
//     ... copy ranges_read(chunk.operation) to the host, run it, copy ranges_written() back
//   }
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <vector>

#include "tccl/operation.h"

namespace torch_ccl {

struct RankAndSize {
  int rank, size;
};

struct Chunk {
  tccl::Operation operation;
  std::vector<tccl::ConstBlock> in_blocks{};  // what the operation's spans refer to
  std::vector<tccl::Block> out_blocks{};
};

/// Every rank splits at the same elements. alltoall, gather, scatter and messages are one chunk,
/// because there a rank does not know the sizes that the other ranks pass.
std::vector<Chunk> split_into_chunks(const tccl::Operation& operation, RankAndSize self,
                                     std::size_t chunk_bytes);

struct MemoryRange {
  const void* data;
  std::size_t bytes;
};
/// The memory that an operation reads and writes on this rank. Ranges may be empty.
std::vector<MemoryRange> ranges_read(const tccl::Operation& operation, RankAndSize self);
std::vector<MemoryRange> ranges_written(const tccl::Operation& operation, RankAndSize self);

}  // namespace torch_ccl
