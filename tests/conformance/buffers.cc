#include "buffers.h"

#include <algorithm>
#include <numeric>

namespace conformance {

namespace {

constexpr std::size_t kGuardBytes = 64;
constexpr std::byte kUntouched{0xA5};

bool is_untouched(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == kUntouched; });
}

}  // namespace

Blocks::Blocks(const std::vector<std::size_t>& block_bytes, bool scattered,
               std::size_t skew_bytes) {
  const std::span<const std::size_t> all = block_bytes;
  if (!scattered) {
    add_memory(all, skew_bytes);
  } else {
    for (std::size_t block = 0; block < all.size(); ++block) {
      add_memory(all.subspan(block, 1), skew_bytes);
    }
  }
}

void Blocks::add_memory(std::span<const std::size_t> block_bytes, std::size_t skew_bytes) {
  std::size_t offset = kGuardBytes + skew_bytes;
  for (const std::size_t bytes : block_bytes) {
    places_.push_back({memory_.size(), offset, bytes});
    offset += bytes;
  }
  memory_.emplace_back(offset + kGuardBytes, kUntouched);
}

std::span<std::byte> Blocks::operator[](std::size_t block) {
  const Place& place = places_.at(block);
  return std::span(memory_[place.memory]).subspan(place.offset, place.bytes);
}

void Blocks::write(std::size_t block, const Bytes& content) {
  std::copy(content.begin(), content.end(), (*this)[block].begin());
}

bool Blocks::guards_intact() const {
  for (std::size_t m = 0; m < memory_.size(); ++m) {
    const std::span<const std::byte> all = memory_[m];
    std::size_t begin = all.size();
    std::size_t end = 0;
    for (const Place& place : places_) {
      if (place.memory != m) continue;
      begin = std::min(begin, place.offset);
      end = std::max(end, place.offset + place.bytes);
    }
    if (end == 0) end = begin;  // no block lives here
    if (!is_untouched(all.first(begin)) || !is_untouched(all.subspan(end))) return false;
  }
  return true;
}

}  // namespace conformance
