// The sums of the hosts: what they look like on the channel, as they are or float32 with fewer
// bytes, and how they are added up.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "algorithms/task.h"
#include "kernels/copy.h"
#include "kernels/pack.h"
#include "transport/network_channel.h"

namespace tccl {

class HostSums {
 public:
  HostSums(NetworkChannel& channel, const CollectiveTask& task, WireFormat format)
      : channel_(channel), task_(task), format_(format) {}

  [[nodiscard]] bool packs() const { return format_ != WireFormat::same; }
  /// On the channel, for so many bytes of sums.
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

  /// In the order of hosts: `own`, of this one, and a message from each of the others, for which it
  /// waits. `to` may be `own`.
  void add_up(std::byte* to, const std::byte* own,
              std::span<const NetworkChannel::MessagePtr> others, std::size_t bytes) {
    if (packs()) unpacked_.resize(others.size() * bytes);
    const HostMap& host_map = channel_.host_map();
    Sources sources(host_map.hosts());
    std::size_t next = 0;
    for (int host = 0; host < host_map.hosts(); ++host) {
      const bool here = host == host_map.host_of(channel_.rank());
      sources[host] = here ? own : take(others, next++, bytes);
    }
    task_.reduce_hosts(to, sources, bytes);
  }

 private:
  const std::byte* take(std::span<const NetworkChannel::MessagePtr> messages, std::size_t index,
                        std::size_t bytes) {
    const std::byte* came = channel_.await(messages[index], this->bytes(bytes));
    if (!packs()) return came;
    std::byte* sums = unpacked_.data() + index * bytes;
    unpack(sums, came, bytes);
    return sums;
  }

  NetworkChannel& channel_;
  const CollectiveTask& task_;
  WireFormat format_;
  std::vector<std::byte> unpacked_;
};

}  // namespace tccl
