// Rank and size arithmetic as pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tccl {

struct Range {
  std::size_t begin = 0;
  std::size_t count = 0;
};

/// Part `index` of `total` things cut into `parts` nearly equal parts; the first ones are larger.
constexpr Range part(std::size_t total, std::size_t parts, std::size_t index) {
  const std::size_t each = total / parts;
  const std::size_t extra = total % parts;
  return {index * each + std::min(index, extra), each + (index < extra ? 1 : 0)};
}
static_assert(part(10, 4, 0).begin == 0 && part(10, 4, 0).count == 3);
static_assert(part(10, 4, 3).begin == 8 && part(10, 4, 3).count == 2);
static_assert(part(2, 4, 3).begin == 2 && part(2, 4, 3).count == 0);

/// Piece `index` of `total` things cut into pieces of `piece` things; empty behind the end.
constexpr Range piece(std::size_t total, std::size_t piece, std::size_t index) {
  const std::size_t begin = std::min(total, index * piece);
  return {begin, std::min(piece, total - begin)};
}
static_assert(piece(10, 4, 2).begin == 8 && piece(10, 4, 2).count == 2);
static_assert(piece(10, 4, 3).count == 0);

constexpr std::size_t pieces(std::size_t total, std::size_t piece) {
  return (total + piece - 1) / piece;
}
static_assert(pieces(10, 4) == 3 && pieces(8, 4) == 2 && pieces(0, 4) == 0);

/// Bytes of one piece of `total`, at most `largest`: small enough that readers work on one while
/// the writer makes the next, and large enough to pay for a meeting.
constexpr std::size_t piece_size(std::size_t total, std::size_t largest) {
  constexpr std::size_t kSmallest = std::size_t{16} << 10;
  constexpr std::size_t kPieces = 8;
  constexpr std::size_t kLine = 64;  // a piece begins where its tensor's lines do
  const std::size_t wanted = pieces(pieces(total, kPieces), kLine) * kLine;
  return std::min(largest, std::max(kSmallest, wanted));
}
static_assert(piece_size(100, 1 << 18) == 16 << 10 && piece_size(1 << 30, 1 << 18) == 1 << 18);

/// Ranks meet at least once, also when there is nothing to move.
constexpr std::uint32_t steps_for(std::size_t total, std::size_t per_step) {
  return static_cast<std::uint32_t>(std::max<std::size_t>(1, pieces(total, per_step)));
}

}  // namespace tccl
