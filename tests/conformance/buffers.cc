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

std::shared_ptr<void> private_memory(std::size_t bytes) {
  return std::make_shared<std::byte[]>(bytes);
}

Blocks::Blocks(const std::vector<std::size_t>& block_bytes, bool scattered, std::size_t skew_bytes,
               const Allocate& allocate) {
  const std::span<const std::size_t> all = block_bytes;
  if (!scattered) {
    add_memory(all, skew_bytes, allocate);
  } else {
    for (std::size_t block = 0; block < all.size(); ++block) {
      add_memory(all.subspan(block, 1), skew_bytes, allocate);
    }
  }
}

void Blocks::add_memory(std::span<const std::size_t> block_bytes, std::size_t skew_bytes,
                        const Allocate& allocate) {
  std::size_t offset = kGuardBytes + skew_bytes;
  for (const std::size_t bytes : block_bytes) {
    locations_.push_back({memory_.size(), offset, bytes});
    offset += bytes;
  }
  const std::size_t bytes = offset + kGuardBytes;
  std::shared_ptr<void> owner = allocate(bytes);
  const std::span all(static_cast<std::byte*>(owner.get()), bytes);
  std::fill(all.begin(), all.end(), kUntouched);
  memory_.push_back({std::move(owner), all});
}

void Blocks::save() {
  before_.clear();
  for (const Memory& memory : memory_)
    before_.emplace_back(memory.bytes.begin(), memory.bytes.end());
}

bool Blocks::unchanged() const {
  return std::equal(memory_.begin(), memory_.end(), before_.begin(), before_.end(),
                    [](const Memory& now, const Bytes& before) {
                      return std::equal(now.bytes.begin(), now.bytes.end(), before.begin());
                    });
}

std::span<std::byte> Blocks::operator[](std::size_t block) {
  const Location& location = locations_.at(block);
  return memory_[location.memory].bytes.subspan(location.offset, location.bytes);
}

void Blocks::write(std::size_t block, const Bytes& content) {
  std::copy(content.begin(), content.end(), (*this)[block].begin());
}

bool Blocks::guards_intact() const {
  for (std::size_t m = 0; m < memory_.size(); ++m) {
    const std::span<const std::byte> all = memory_[m].bytes;
    std::size_t begin = all.size();
    std::size_t end = 0;
    for (const Location& location : locations_) {
      if (location.memory != m) continue;
      begin = std::min(begin, location.offset);
      end = std::max(end, location.offset + location.bytes);
    }
    if (end == 0) end = begin;  // no block in this memory
    if (!is_untouched(all.first(begin)) || !is_untouched(all.subspan(end))) return false;
  }
  return true;
}

}  // namespace conformance
