// How messages are divided, as pure functions, and the three units of pipelining:
//
//   chunk   a part of the message that fits a slot of the board or a network message. A pipelined
//           algorithm works on several chunks at once, one stage after the other.
//   slice   the part of a chunk that one rank (or one rail) reduces.
//   share   the part of a slice that one host reduces, in algorithms over several hosts.
//
// Example, allreduce of 10 elements over 2 ranks with chunks of 4 elements: chunk 2 is elements
// 8-9, and rank 1 reduces slice 1 of it, element 9. Sizes are in elements or in bytes, as the
// caller likes.
// Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tccl {

struct Range {
  std::size_t begin = 0;
  std::size_t count = 0;
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

/// Part `index` of `total` divided into `parts` nearly equal parts; the first ones are larger.
constexpr Range part(std::size_t total, std::size_t parts, std::size_t index) {
  const std::size_t each = total / parts;
  const std::size_t extra = total % parts;
  return {index * each + std::min(index, extra), each + (index < extra ? 1 : 0)};
}
static_assert(part(10, 4, 0) == Range{0, 3});
static_assert(part(10, 4, 3) == Range{8, 2});
static_assert(part(2, 4, 3) == Range{2, 0});

/// Chunk `index` of `total` divided into chunks of `chunk`; empty beyond the end.
constexpr Range chunk_range(std::size_t total, std::size_t chunk, std::size_t index) {
  const std::size_t begin = std::min(total, index * chunk);
  return {begin, std::min(chunk, total - begin)};
}
static_assert(chunk_range(10, 4, 2) == Range{8, 2});
static_assert(chunk_range(10, 4, 3) == Range{10, 0});

constexpr std::size_t chunk_count(std::size_t total, std::size_t chunk) {
  return (total + chunk - 1) / chunk;
}
static_assert(chunk_count(10, 4) == 3 && chunk_count(8, 4) == 2 && chunk_count(0, 4) == 0);

/// A message of up to this size is one chunk. `largest` is the setting CCL_CHUNK_BYTES.
constexpr std::size_t smallest_chunk(std::size_t largest) {
  return std::min(largest, std::size_t{16} << 10);
}

/// Bytes of a chunk of a message of `total` bytes: at most `largest`; small enough that peers read
/// one chunk while this rank writes the next, large enough to pay for the synchronisation.
constexpr std::size_t chunk_size(std::size_t total, std::size_t largest) {
  constexpr std::size_t kChunks = 8;
  constexpr std::size_t kCacheLine = 64;  // chunks start at the same offset in a cache line
  const std::size_t wanted = chunk_count(chunk_count(total, kChunks), kCacheLine) * kCacheLine;
  return std::clamp(wanted, smallest_chunk(largest), largest);
}
static_assert(chunk_size(100, 1 << 18) == 16 << 10 && chunk_size(1 << 30, 1 << 18) == 1 << 18);

/// Number of board steps for `total`: at least one, because ranks synchronise also if there is
/// nothing to move.
constexpr std::uint32_t steps_for(std::size_t total, std::size_t per_step) {
  return static_cast<std::uint32_t>(std::max<std::size_t>(1, chunk_count(total, per_step)));
}

}  // namespace tccl
