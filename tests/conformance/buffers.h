// Memory handed to the library, with bytes around it that nobody may touch.
// Not thread-safe; each belongs to one case on one rank.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "reference.h"

namespace conformance {

using Allocate = std::function<std::shared_ptr<void>(std::size_t bytes)>;
/// Memory of this process alone.
std::shared_ptr<void> private_memory(std::size_t bytes);

/// The blocks of one input or output, each between guards, or all end to end between one pair.
class Blocks {
 public:
  /// `skew_bytes` moves every block away from the allocator's alignment.
  Blocks(const std::vector<std::size_t>& block_bytes, bool scattered, std::size_t skew_bytes,
         const Allocate& allocate = private_memory);

  [[nodiscard]] std::size_t size() const { return places_.size(); }
  [[nodiscard]] std::span<std::byte> operator[](std::size_t block);
  /// Where the blocks begin, if they lie end to end.
  [[nodiscard]] std::byte* data() { return places_.empty() ? nullptr : (*this)[0].data(); }
  void write(std::size_t block, const Bytes& content);

  /// Call once everything is written, before the library sees it.
  void remember();
  [[nodiscard]] bool guards_intact() const;
  [[nodiscard]] bool unchanged() const;

 private:
  struct Place {
    std::size_t memory;  // index into memory_
    std::size_t offset;
    std::size_t bytes;
  };
  struct Memory {
    std::shared_ptr<void> owner;
    std::span<std::byte> bytes;
  };
  void add_memory(std::span<const std::size_t> block_bytes, std::size_t skew_bytes,
                  const Allocate& allocate);

  std::vector<Place> places_;
  std::vector<Memory> memory_;
  std::vector<Bytes> before_;
};

}  // namespace conformance
