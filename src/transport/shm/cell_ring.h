// CellRing: one direction of point-to-point traffic between two ranks of a host, in the sender's
// shared memory.
//
// The sender writes a cell and increments `posted`; the receiver copies the cell out and increments
// cells_taken in its own region.
// Thread safety: one sender, one receiver; see ShmLink.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/link.h"

namespace tccl::shm {

inline constexpr std::uint64_t kCells = 16;

/// In shared memory; the cells follow it.
struct CellRing {
  alignas(64) std::atomic<std::uint64_t> posted;  // ShmLink::post() releases, take() acquires

  static std::size_t cell_stride(std::size_t payload_bytes) {
    return (sizeof(CellHeader) + payload_bytes + 63) / 64 * 64;
  }
  static std::size_t bytes(std::size_t payload_bytes) {
    return sizeof(CellRing) + kCells * cell_stride(payload_bytes);
  }
  [[nodiscard]] std::byte* cell(std::uint64_t index, std::size_t payload_bytes) {
    return reinterpret_cast<std::byte*>(this + 1) + (index % kCells) * cell_stride(payload_bytes);
  }
};

}  // namespace tccl::shm
