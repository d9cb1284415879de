// Memory handed to the library, with bytes around it that nobody may touch.
// Not thread-safe; each belongs to one case on one rank.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "reference.h"

namespace conformance {

/// The blocks of one input or output, each between guards, or all end to end between one pair.
class Blocks {
 public:
  /// `skew_bytes` moves every block away from the allocator's alignment.
  Blocks(const std::vector<std::size_t>& block_bytes, bool scattered, std::size_t skew_bytes);

  [[nodiscard]] std::size_t size() const { return places_.size(); }
  [[nodiscard]] std::span<std::byte> operator[](std::size_t block);
  /// Where the blocks begin, if they lie end to end.
  [[nodiscard]] std::byte* data() { return places_.empty() ? nullptr : (*this)[0].data(); }
  void write(std::size_t block, const Bytes& content);

  /// Call once everything is written, before the library sees it.
  void remember() { before_ = memory_; }
  [[nodiscard]] bool guards_intact() const;
  [[nodiscard]] bool unchanged() const { return memory_ == before_; }

 private:
  struct Place {
    std::size_t memory;  // index into memory_
    std::size_t offset;
    std::size_t bytes;
  };
  void add_memory(std::span<const std::size_t> block_bytes, std::size_t skew_bytes);

  std::vector<Place> places_;
  std::vector<Bytes> memory_;
  std::vector<Bytes> before_;
};

}  // namespace conformance
