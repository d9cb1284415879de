// Which host each rank of a group is on. Pure and immutable.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace tccl {

class Layout {
 public:
  /// Ranks with the same label are on one host. Hosts are numbered in the order of their first
  /// ranks, whatever their labels.
  explicit Layout(std::span<const int> label_of_rank) {
    std::vector<int> labels;  // by host
    for (const int label : label_of_rank) {
      const auto host = static_cast<std::size_t>(std::ranges::find(labels, label) - labels.begin());
      if (host == labels.size()) {
        labels.push_back(label);
        ranks_of_.emplace_back();
      }
      place_of_.push_back(static_cast<int>(ranks_of_[host].size()));
      ranks_of_[host].push_back(static_cast<int>(host_of_.size()));
      host_of_.push_back(static_cast<int>(host));
    }
    for (const auto& ranks : ranks_of_) {
      fewest_ = std::min(fewest_, ranks.size());
      most_ = std::max(most_, ranks.size());
    }
  }

  [[nodiscard]] int ranks() const { return static_cast<int>(host_of_.size()); }
  [[nodiscard]] int hosts() const { return static_cast<int>(ranks_of_.size()); }
  [[nodiscard]] int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  /// Among the ranks of its host.
  [[nodiscard]] int place_of(int rank) const { return place_of_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::span<const int> ranks_of(int host) const {
    return ranks_of_[static_cast<std::size_t>(host)];
  }
  [[nodiscard]] int ranks_on(int host) const { return static_cast<int>(ranks_of(host).size()); }
  [[nodiscard]] bool same_host(int a, int b) const { return host_of(a) == host_of(b); }
  /// The rank of `host` that deals with whoever has `place` on another host.
  [[nodiscard]] int partner(int host, int place) const {
    return ranks_of(host)[static_cast<std::size_t>(place % ranks_on(host))];
  }
  /// How many ranks the smallest and the largest host have.
  [[nodiscard]] int fewest() const { return static_cast<int>(fewest_); }
  [[nodiscard]] int most() const { return static_cast<int>(most_); }

 private:
  std::vector<int> host_of_;
  std::vector<int> place_of_;
  std::vector<std::vector<int>> ranks_of_;
  std::size_t fewest_ = static_cast<std::size_t>(-1);
  std::size_t most_ = 0;
};

}  // namespace tccl
