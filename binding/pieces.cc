#include "pieces.h"

#include <algorithm>

namespace torch_ccl {
namespace {

using tccl::Block;
using tccl::ConstBlock;
using tccl::Op;
using tccl::Operation;

/// Elements [begin, begin + count) of a part.
struct Range {
  std::size_t begin, count;
};

Range range_of(std::size_t piece, std::size_t pieces, std::size_t elements) {
  const std::size_t begin = elements * piece / pieces;
  return {begin, elements * (piece + 1) / pieces - begin};
}

const void* moved(const void* data, std::size_t elements, tccl::DType dtype) {
  return data ? static_cast<const char*>(data) + elements * size_of(dtype) : nullptr;
}
void* moved(void* data, std::size_t elements, tccl::DType dtype) {
  return data ? static_cast<char*>(data) + elements * size_of(dtype) : nullptr;
}

template <class AnyBlock>
std::size_t longest_of(std::span<const AnyBlock> blocks) {
  std::size_t longest = 0;
  for (const AnyBlock& block : blocks) longest = std::max(longest, block.count);
  return longest;
}

/// The longest part that the ranks know of each other; 0 if they know none.
std::size_t longest_part(const Operation& operation) {
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

/// The parts of a collective of equal parts, one after the other in memory.
template <class AnyBlock, class Pointer>
std::vector<AnyBlock> equal_parts(Pointer* data, std::size_t count, tccl::DType dtype, int size) {
  std::vector<AnyBlock> parts;
  for (std::size_t r = 0; r < static_cast<std::size_t>(size); ++r)
    parts.push_back({moved(data, r * count, dtype), count});
  return parts;
}

template <class AnyBlock>
std::vector<AnyBlock> piece_of_each(const std::vector<AnyBlock>& parts, std::size_t piece,
                                    std::size_t pieces, tccl::DType dtype) {
  std::vector<AnyBlock> result;
  for (const AnyBlock& part : parts) {
    const Range range = range_of(piece, pieces, part.count);
    result.push_back({moved(part.data, range.begin, dtype), range.count});
  }
  return result;
}

Piece cut_gathering(const Operation& whole, const std::vector<Block>& parts, std::size_t piece,
                    std::size_t pieces, std::size_t rank) {
  const Range own = range_of(piece, pieces, parts[rank].count);
  Piece result{.operation = whole, .out_blocks = piece_of_each(parts, piece, pieces, whole.dtype)};
  const void* in = moved(whole.in, own.begin, whole.dtype);
  result.operation = tccl::allgatherv(in, result.out_blocks, whole.dtype);
  return result;
}

Piece cut_scattering(const Operation& whole, const std::vector<ConstBlock>& parts,
                     std::size_t piece, std::size_t pieces, std::size_t rank) {
  const Range own = range_of(piece, pieces, parts[rank].count);
  Piece result{.operation = whole, .in_blocks = piece_of_each(parts, piece, pieces, whole.dtype)};
  void* out = moved(whole.out, own.begin, whole.dtype);
  result.operation = tccl::reduce_scatterv(result.in_blocks, out, whole.dtype, whole.reduction);
  result.operation.wire_format = whole.wire_format;
  return result;
}

Piece cut_elements(const Operation& whole, std::size_t piece, std::size_t pieces) {
  const Range range = range_of(piece, pieces, whole.count);
  Piece result{.operation = whole};
  result.operation.in = moved(whole.in, range.begin, whole.dtype);
  result.operation.out = moved(whole.out, range.begin, whole.dtype);
  result.operation.count = range.count;
  return result;
}

/// The parts that allgather and reduce_scatter have without naming them.
std::vector<Block> parts_gathered(const Operation& whole, int size) {
  if (whole.op == Op::allgather)
    return equal_parts<Block>(whole.out, whole.count, whole.dtype, size);
  return {whole.out_blocks.begin(), whole.out_blocks.end()};
}
std::vector<ConstBlock> parts_scattered(const Operation& whole, int size) {
  if (whole.op == Op::reduce_scatter)
    return equal_parts<ConstBlock>(whole.in, whole.count, whole.dtype, size);
  return {whole.in_blocks.begin(), whole.in_blocks.end()};
}

}  // namespace

std::vector<Piece> cut(const Operation& whole, Place place, std::size_t piece_bytes) {
  const std::size_t longest = longest_part(whole);
  const std::size_t bytes = longest * size_of(whole.dtype);
  const std::size_t pieces = (bytes + piece_bytes - 1) / piece_bytes;
  std::vector<Piece> result;
  if (pieces <= 1) {
    result.push_back({.operation = whole});
    return result;
  }
  const auto own = static_cast<std::size_t>(place.rank);
  const std::vector<Block> gathered = parts_gathered(whole, place.size);
  const std::vector<ConstBlock> scattered = parts_scattered(whole, place.size);
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    if (!gathered.empty()) {
      result.push_back(cut_gathering(whole, gathered, piece, pieces, own));
    } else if (!scattered.empty()) {
      result.push_back(cut_scattering(whole, scattered, piece, pieces, own));
    } else {
      result.push_back(cut_elements(whole, piece, pieces));
    }
    result.back().operation.whole_count = longest;
    result.back().operation.piece = static_cast<std::uint32_t>(piece);
  }
  return result;
}

namespace {

template <class AnyBlock>
std::vector<Extent> extents_of(std::span<const AnyBlock> blocks, tccl::DType dtype) {
  std::vector<Extent> extents;
  for (const AnyBlock& block : blocks)
    extents.push_back({block.data, block.count * size_of(dtype)});
  return extents;
}

}  // namespace

std::vector<Extent> read_by(const Operation& operation, Place place) {
  const std::size_t bytes = operation.count * size_of(operation.dtype);
  const std::size_t bytes_of_all = bytes * static_cast<std::size_t>(place.size);
  const bool is_root = place.rank == operation.root;
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
      return {{operation.in, is_root ? bytes_of_all : 0}};
    case Op::reduce_scatter:
    case Op::alltoall:
      return {{operation.in, bytes_of_all}};
    case Op::allgatherv: {
      const Block& own = operation.out_blocks[static_cast<std::size_t>(place.rank)];
      return {{operation.in, own.count * size_of(operation.dtype)}};
    }
    case Op::scatterv:
    case Op::reduce_scatterv:
    case Op::alltoallv:
      return extents_of(operation.in_blocks, operation.dtype);
  }
  return {};
}

std::vector<Extent> written_by(const Operation& operation, Place place) {
  const std::size_t bytes = operation.count * size_of(operation.dtype);
  const std::size_t bytes_of_all = bytes * static_cast<std::size_t>(place.size);
  const bool is_root = place.rank == operation.root;
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
      return {{operation.out, is_root ? bytes_of_all : 0}};
    case Op::allgather:
    case Op::alltoall:
      return {{operation.out, bytes_of_all}};
    case Op::reduce_scatterv: {
      const ConstBlock& own = operation.in_blocks[static_cast<std::size_t>(place.rank)];
      return {{operation.out, own.count * size_of(operation.dtype)}};
    }
    case Op::allgatherv:
    case Op::gatherv:
    case Op::alltoallv:
      return extents_of(operation.out_blocks, operation.dtype);
  }
  return {};
}

}  // namespace torch_ccl
