// Buffers passed to the library, between guard bytes that must not change.
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
/// Memory that other ranks do not map.
std::shared_ptr<void> private_memory(std::size_t bytes);

/// The blocks of one input or output: each between its own guards, or contiguous between one pair.
class Blocks {
 public:
  /// `skew_bytes`: offset of every block from the allocator's alignment.
  Blocks(const std::vector<std::size_t>& block_bytes, bool scattered, std::size_t skew_bytes,
         const Allocate& allocate = private_memory);

  [[nodiscard]] std::size_t size() const { return locations_.size(); }
  [[nodiscard]] std::span<std::byte> operator[](std::size_t block);
  /// Start of the blocks, if they are contiguous.
  [[nodiscard]] std::byte* data() { return locations_.empty() ? nullptr : (*this)[0].data(); }
  void write(std::size_t block, const Bytes& content);

  /// Saves the contents for unchanged(). Call after writing and before the operation.
  void save();
  [[nodiscard]] bool guards_intact() const;
  [[nodiscard]] bool unchanged() const;

 private:
  struct Location {
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

  std::vector<Location> locations_;
  std::vector<Memory> memory_;
  std::vector<Bytes> before_;
};

}  // namespace conformance
