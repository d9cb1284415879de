// One direction between two ranks: a ring of cells in the sender's memory.
//
// The sender writes a cell and raises `posted`; the receiver copies it out and raises cells_taken
// in its own region.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/link.h"

namespace tccl::shm {

inline constexpr std::uint64_t kCells = 16;

/// Lies in shared memory; cells follow it.
struct CellRing {
  alignas(64) std::atomic<std::uint64_t> posted;

  static std::size_t cell_stride(std::size_t payload_bytes) {
    return (sizeof(CellHeader) + payload_bytes + 63) / 64 * 64;
  }
  static std::size_t bytes(std::size_t payload_bytes) {
    return sizeof(CellRing) + kCells * cell_stride(payload_bytes);
  }
  [[nodiscard]] std::byte* cell(std::uint64_t number, std::size_t payload_bytes) {
    return reinterpret_cast<std::byte*>(this + 1) + (number % kCells) * cell_stride(payload_bytes);
  }
};

}  // namespace tccl::shm
