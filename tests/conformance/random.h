// A deterministic random generator (splitmix64): the same key gives the same numbers on every rank,
// so that each rank can compute the inputs of all others.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace conformance {

class Random {
 public:
  explicit Random(std::initializer_list<std::uint64_t> key) {
    for (const std::uint64_t part : key) state_ = mixed(state_ ^ mixed(part + kStep));
  }

  std::uint64_t next() { return mixed(state_ += kStep); }
  /// A number below `limit`.
  std::uint64_t below(std::uint64_t limit) { return next() % limit; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }

 private:
  static constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15;

  static std::uint64_t mixed(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
  }

  std::uint64_t state_ = 0;
};

}  // namespace conformance
