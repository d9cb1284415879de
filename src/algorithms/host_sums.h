// Partial sums that hosts exchange in a hierarchical reduction: their format in a network message
// (unchanged, or float32 compressed, CCL_WIRE_DTYPE), and the reduction over hosts.
//
//   sums.compress(message->data(), host_sum, bytes);
//   channel.send(message, sums.wire_bytes(bytes), peer);
//   sums.reduce(out, host_sum, messages_from_other_hosts, bytes);
// Thread safety: one operation, on one thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "algorithms/task.h"
#include "kernels/compress.h"
#include "kernels/copy.h"
#include "transport/network_channel.h"

namespace tccl {

class HostSums {
 public:
  HostSums(NetworkChannel& channel, const CollectiveTask& task, WireFormat format)
      : channel_(channel), task_(task), format_(format) {}

  [[nodiscard]] bool compresses() const { return format_ != WireFormat::uncompressed; }
  /// Bytes in a message of `bytes` of sums.
  [[nodiscard]] std::size_t wire_bytes(std::size_t bytes) const {
    return compresses() ? kernels::compressed_bytes(format_, bytes / sizeof(float)) : bytes;
  }
  void compress(std::byte* to, const std::byte* sums, std::size_t bytes) const {
    if (compresses())
      kernels::compress(to, reinterpret_cast<const float*>(sums), bytes / sizeof(float), format_);
    else
      kernels::copy(to, sums, bytes);
  }
  void decompress(std::byte* sums, const std::byte* from, std::size_t bytes) const {
    if (compresses())
      kernels::decompress(reinterpret_cast<float*>(sums), from, bytes / sizeof(float), format_);
    else
      kernels::copy(sums, from, bytes);
  }

  /// Reduces, in host order, this host's sum and one message from each other host, for which it
  /// waits. `to` may be `own`.
  void reduce(std::byte* to, const std::byte* own,
              std::span<const NetworkChannel::MessagePtr> others, std::size_t bytes) {
    if (compresses()) decompressed_.resize(others.size() * bytes);
    const HostMap& host_map = channel_.host_map();
    Sources sources(host_map.hosts());
    std::size_t next = 0;
    for (int host = 0; host < host_map.hosts(); ++host) {
      const bool is_own = host == host_map.host_of(channel_.rank());
      sources[host] = is_own ? own : receive(others, next++, bytes);
    }
    task_.reduce_hosts(to, sources, bytes);
  }

 private:
  const std::byte* receive(std::span<const NetworkChannel::MessagePtr> messages, std::size_t index,
                           std::size_t bytes) {
    const std::byte* data = channel_.await(messages[index], wire_bytes(bytes));
    if (!compresses()) return data;
    std::byte* sums = decompressed_.data() + index * bytes;
    decompress(sums, data, bytes);
    return sums;
  }

  NetworkChannel& channel_;
  const CollectiveTask& task_;
  WireFormat format_;
  std::vector<std::byte> decompressed_;
};

}  // namespace tccl
