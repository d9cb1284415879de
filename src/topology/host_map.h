// Which host each rank of a group is on.
// Thread safety: immutable after construction.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace tccl {

class HostMap {
 public:
  /// Ranks with the same label are on one host. Hosts are numbered by their lowest rank, whatever
  /// their labels.
  explicit HostMap(std::span<const int> label_of_rank) {
    std::vector<int> labels;  // by host
    for (const int label : label_of_rank) {
      const auto host = static_cast<std::size_t>(std::ranges::find(labels, label) - labels.begin());
      if (host == labels.size()) {
        labels.push_back(label);
        ranks_of_.emplace_back();
      }
      local_rank_.push_back(static_cast<int>(ranks_of_[host].size()));
      ranks_of_[host].push_back(static_cast<int>(host_of_.size()));
      host_of_.push_back(static_cast<int>(host));
    }
    for (const auto& ranks : ranks_of_) {
      min_local_size_ = std::min(min_local_size_, ranks.size());
      max_local_size_ = std::max(max_local_size_, ranks.size());
    }
  }

  [[nodiscard]] int ranks() const { return static_cast<int>(host_of_.size()); }
  [[nodiscard]] int hosts() const { return static_cast<int>(ranks_of_.size()); }
  [[nodiscard]] int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  /// The rank's index among the ranks of its host.
  [[nodiscard]] int local_rank(int rank) const {
    return local_rank_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] std::span<const int> ranks_of(int host) const {
    return ranks_of_[static_cast<std::size_t>(host)];
  }
  [[nodiscard]] int local_size(int host) const { return static_cast<int>(ranks_of(host).size()); }
  [[nodiscard]] bool same_host(int a, int b) const { return host_of(a) == host_of(b); }
  /// The rail peer, on `host`, of ranks of other hosts with this local rank: the rank with the same
  /// local rank, modulo the size of `host`.
  [[nodiscard]] int rail_peer(int host, int local_rank) const {
    return ranks_of(host)[static_cast<std::size_t>(local_rank % local_size(host))];
  }
  /// Ranks of the smallest and of the largest host.
  [[nodiscard]] int min_local_size() const { return static_cast<int>(min_local_size_); }
  [[nodiscard]] int max_local_size() const { return static_cast<int>(max_local_size_); }

 private:
  std::vector<int> host_of_;
  std::vector<int> local_rank_;
  std::vector<std::vector<int>> ranks_of_;
  std::size_t min_local_size_ = static_cast<std::size_t>(-1);
  std::size_t max_local_size_ = 0;
};

}  // namespace tccl
