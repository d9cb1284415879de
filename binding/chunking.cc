#include "chunking.h"

#include <algorithm>

namespace torch_ccl {
namespace {

using tccl::Block;
using tccl::ConstBlock;
using tccl::Op;
using tccl::Operation;

/// Which of the chunks of an operation.
struct ChunkIndex {
  std::size_t index, chunks;
};

/// Elements [begin, begin + count) of a block.
struct ElementRange {
  std::size_t begin, count;
};

ElementRange elements_of(ChunkIndex chunk, std::size_t block_count) {
  const std::size_t begin = block_count * chunk.index / chunk.chunks;
  return {begin, block_count * (chunk.index + 1) / chunk.chunks - begin};
}

const void* advance(const void* data, std::size_t elements, tccl::DType dtype) {
  return data ? static_cast<const char*>(data) + elements * size_of(dtype) : nullptr;
}
void* advance(void* data, std::size_t elements, tccl::DType dtype) {
  return data ? static_cast<char*>(data) + elements * size_of(dtype) : nullptr;
}

template <class AnyBlock>
std::size_t longest_of(std::span<const AnyBlock> blocks) {
  std::size_t longest = 0;
  for (const AnyBlock& block : blocks) longest = std::max(longest, block.count);
  return longest;
}

/// Elements in the longest block, where every rank knows the sizes of all blocks; otherwise 0.
std::size_t longest_block(const Operation& operation) {
  switch (operation.op) {
    case Op::allreduce:
    case Op::reduce:
    case Op::broadcast:
    case Op::allgather:
    case Op::reduce_scatter:
      return operation.count;
    case Op::allgatherv:
      return longest_of(operation.out_blocks);
    case Op::reduce_scatterv:
      return longest_of(operation.in_blocks);
    default:
      return 0;
  }
}

/// The blocks of allgather and reduce_scatter: one per rank, of equal size, contiguous in memory.
template <class AnyBlock, class Pointer>
std::vector<AnyBlock> equal_blocks(Pointer* data, std::size_t count, tccl::DType dtype, int size) {
  std::vector<AnyBlock> blocks;
  for (std::size_t r = 0; r < static_cast<std::size_t>(size); ++r)
    blocks.push_back({advance(data, r * count, dtype), count});
  return blocks;
}

template <class AnyBlock>
std::vector<AnyBlock> chunk_of_each(const std::vector<AnyBlock>& blocks, ChunkIndex chunk,
                                    tccl::DType dtype) {
  std::vector<AnyBlock> result;
  for (const AnyBlock& block : blocks) {
    const ElementRange range = elements_of(chunk, block.count);
    result.push_back({advance(block.data, range.begin, dtype), range.count});
  }
  return result;
}

Chunk gather_chunk(const Operation& operation, const std::vector<Block>& blocks, ChunkIndex chunk,
                   std::size_t rank) {
  const ElementRange own = elements_of(chunk, blocks[rank].count);
  Chunk result{.operation = operation, .out_blocks = chunk_of_each(blocks, chunk, operation.dtype)};
  const void* in = advance(operation.in, own.begin, operation.dtype);
  result.operation = tccl::allgatherv(in, result.out_blocks, operation.dtype);
  return result;
}

Chunk reduce_scatter_chunk(const Operation& operation, const std::vector<ConstBlock>& blocks,
                           ChunkIndex chunk, std::size_t rank) {
  const ElementRange own = elements_of(chunk, blocks[rank].count);
  Chunk result{.operation = operation, .in_blocks = chunk_of_each(blocks, chunk, operation.dtype)};
  void* out = advance(operation.out, own.begin, operation.dtype);
  result.operation =
      tccl::reduce_scatterv(result.in_blocks, out, operation.dtype, operation.reduction);
  result.operation.wire_format = operation.wire_format;
  return result;
}

Chunk element_chunk(const Operation& operation, ChunkIndex chunk) {
  const ElementRange range = elements_of(chunk, operation.count);
  Chunk result{.operation = operation};
  result.operation.in = advance(operation.in, range.begin, operation.dtype);
  result.operation.out = advance(operation.out, range.begin, operation.dtype);
  result.operation.count = range.count;
  return result;
}

/// Empty unless the operation is allgather or allgatherv.
std::vector<Block> gathered_blocks(const Operation& operation, int size) {
  if (operation.op == Op::allgather)
    return equal_blocks<Block>(operation.out, operation.count, operation.dtype, size);
  return {operation.out_blocks.begin(), operation.out_blocks.end()};
}
/// Empty unless the operation is reduce_scatter or reduce_scatterv.
std::vector<ConstBlock> scattered_blocks(const Operation& operation, int size) {
  if (operation.op == Op::reduce_scatter)
    return equal_blocks<ConstBlock>(operation.in, operation.count, operation.dtype, size);
  return {operation.in_blocks.begin(), operation.in_blocks.end()};
}

}  // namespace

std::vector<Chunk> split_into_chunks(const Operation& operation, RankAndSize self,
                                     std::size_t chunk_bytes) {
  const std::size_t longest = longest_block(operation);
  const std::size_t bytes = longest * size_of(operation.dtype);
  const std::size_t chunks = (bytes + chunk_bytes - 1) / chunk_bytes;
  std::vector<Chunk> result;
  if (chunks <= 1) {
    result.push_back({.operation = operation});
    return result;
  }
  const auto rank = static_cast<std::size_t>(self.rank);
  const std::vector<Block> gathered = gathered_blocks(operation, self.size);
  const std::vector<ConstBlock> scattered = scattered_blocks(operation, self.size);
  for (std::size_t index = 0; index < chunks; ++index) {
    const ChunkIndex chunk{index, chunks};
    if (!gathered.empty()) {
      result.push_back(gather_chunk(operation, gathered, chunk, rank));
    } else if (!scattered.empty()) {
      result.push_back(reduce_scatter_chunk(operation, scattered, chunk, rank));
    } else {
      result.push_back(element_chunk(operation, chunk));
    }
    result.back().operation.total_count = longest;
    result.back().operation.staging_chunk_index = static_cast<std::uint32_t>(index);
  }
  return result;
}

namespace {

template <class AnyBlock>
std::vector<MemoryRange> ranges_of(std::span<const AnyBlock> blocks, tccl::DType dtype) {
  std::vector<MemoryRange> ranges;
  for (const AnyBlock& block : blocks) ranges.push_back({block.data, block.count * size_of(dtype)});
  return ranges;
}

}  // namespace

std::vector<MemoryRange> ranges_read(const Operation& operation, RankAndSize self) {
  const std::size_t bytes = operation.count * size_of(operation.dtype);
  const std::size_t bytes_of_all_ranks = bytes * static_cast<std::size_t>(self.size);
  const bool is_root = self.rank == operation.root;
  switch (operation.op) {
    case Op::barrier:
    case Op::recv:
      return {};
    case Op::allreduce:
    case Op::reduce:
    case Op::allgather:
    case Op::gather:
    case Op::gatherv:
    case Op::send:
      return {{operation.in, bytes}};
    case Op::broadcast:
      return {{operation.in, is_root ? bytes : 0}};
    case Op::scatter:
      return {{operation.in, is_root ? bytes_of_all_ranks : 0}};
    case Op::reduce_scatter:
    case Op::alltoall:
      return {{operation.in, bytes_of_all_ranks}};
    case Op::allgatherv: {
      const Block& own = operation.out_blocks[static_cast<std::size_t>(self.rank)];
      return {{operation.in, own.count * size_of(operation.dtype)}};
    }
    case Op::scatterv:
    case Op::reduce_scatterv:
    case Op::alltoallv:
      return ranges_of(operation.in_blocks, operation.dtype);
  }
  return {};
}

std::vector<MemoryRange> ranges_written(const Operation& operation, RankAndSize self) {
  const std::size_t bytes = operation.count * size_of(operation.dtype);
  const std::size_t bytes_of_all_ranks = bytes * static_cast<std::size_t>(self.size);
  const bool is_root = self.rank == operation.root;
  switch (operation.op) {
    case Op::barrier:
    case Op::send:
      return {};
    case Op::allreduce:
    case Op::reduce_scatter:
    case Op::scatter:
    case Op::scatterv:
    case Op::recv:
      return {{operation.out, bytes}};
    case Op::broadcast:
      return {{operation.out, is_root ? 0 : bytes}};
    case Op::reduce:
      return {{operation.out, is_root ? bytes : 0}};
    case Op::gather:
      return {{operation.out, is_root ? bytes_of_all_ranks : 0}};
    case Op::allgather:
    case Op::alltoall:
      return {{operation.out, bytes_of_all_ranks}};
    case Op::reduce_scatterv: {
      const ConstBlock& own = operation.in_blocks[static_cast<std::size_t>(self.rank)];
      return {{operation.out, own.count * size_of(operation.dtype)}};
    }
    case Op::allgatherv:
    case Op::gatherv:
    case Op::alltoallv:
      return ranges_of(operation.out_blocks, operation.dtype);
  }
  return {};
}

}  // namespace torch_ccl
