// What sums look like on the wire between hosts: as they are, or float32 with fewer bytes.
#pragma once

#include <cstddef>
#include <vector>

#include "algorithms/call.h"
#include "kernels/copy.h"
#include "kernels/pack.h"
#include "transport/wire.h"

namespace tccl {

class WireSums {
 public:
  explicit WireSums(const Wire& wire) : format_(wire.format()) {}

  [[nodiscard]] bool packs() const { return format_ != WireFormat::same; }
  /// On the wire, for so many bytes of sums.
  [[nodiscard]] std::size_t bytes(std::size_t of_sums) const {
    return packs() ? kernels::packed_bytes(format_, of_sums / sizeof(float)) : of_sums;
  }
  void pack(std::byte* to, const std::byte* sums, std::size_t bytes) const {
    if (packs())
      kernels::pack(to, reinterpret_cast<const float*>(sums), bytes / sizeof(float), format_);
    else
      kernels::copy(to, sums, bytes);
  }
  void unpack(std::byte* sums, const std::byte* from, std::size_t bytes) const {
    if (packs())
      kernels::unpack(reinterpret_cast<float*>(sums), from, bytes / sizeof(float), format_);
    else
      kernels::copy(sums, from, bytes);
  }

 private:
  WireFormat format_;
};

}  // namespace tccl
