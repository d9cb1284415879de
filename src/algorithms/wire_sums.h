// The sums of the hosts: what they look like on the wire, as they are or float32 with fewer bytes,
// and how they are added up.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "algorithms/call.h"
#include "kernels/copy.h"
#include "kernels/pack.h"
#include "transport/wire.h"

namespace tccl {

class WireSums {
 public:
  WireSums(Wire& wire, const Call& call, WireFormat format)
      : wire_(wire), call_(call), format_(format) {}

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

  /// In the order of hosts: `own`, of this one, and a letter from each of the others, for which it
  /// waits. `to` may be `own`.
  void add_up(std::byte* to, const std::byte* own, std::span<const Wire::LetterPtr> others,
              std::size_t bytes) {
    if (packs()) unpacked_.resize(others.size() * bytes);
    const Layout& layout = wire_.layout();
    Sources sources(layout.hosts());
    std::size_t next = 0;
    for (int host = 0; host < layout.hosts(); ++host) {
      const bool here = host == layout.host_of(wire_.rank());
      sources[host] = here ? own : take(others, next++, bytes);
    }
    call_.reduce_hosts(to, sources, bytes);
  }

 private:
  const std::byte* take(std::span<const Wire::LetterPtr> letters, std::size_t index,
                        std::size_t bytes) {
    const std::byte* came = wire_.await(letters[index], this->bytes(bytes));
    if (!packs()) return came;
    std::byte* sums = unpacked_.data() + index * bytes;
    unpack(sums, came, bytes);
    return sums;
  }

  Wire& wire_;
  const Call& call_;
  WireFormat format_;
  std::vector<std::byte> unpacked_;
};

}  // namespace tccl
