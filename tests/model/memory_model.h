// The values that a load may return: an operational model of C++20 atomics.
//
// Each location has a list of stores, in modification order. Each thread has a view: the oldest
// store of each location that it may still read. A release store carries the view of its thread, and
// an acquire load that reads it adds that view to its own; fences do the same for the relaxed
// accesses beside them. A seq_cst fence also exchanges views with one view that all such fences
// share. Happens-before, for data races, is kept in vector clocks that travel the same way, except
// through the view of the seq_cst fences.
//
// Stricter than C++ in two points: stores enter the modification order when they are executed, and
// no load sees a store that is executed later (no load buffering). Weaker in one: a seq_cst access
// is only an acquire or release, so the code under test must rely on fences.
// Thread safety: none.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace tccl::model {

inline constexpr std::size_t kMaxThreads = 4;
using Address = std::uint64_t;  // of shared memory: the same for all its mappings
using Order = std::memory_order;

constexpr bool acquires(Order order) { return order != Order::relaxed && order != Order::release; }
constexpr bool releases(Order order) {
  return order == Order::release || order == Order::acq_rel || order == Order::seq_cst;
}

/// By index of the location: the first store that may be read.
class View {
 public:
  static constexpr std::size_t kMaxLocations = 128;
  [[nodiscard]] std::size_t of(std::size_t location) const { return first_[location]; }
  void raise(std::size_t location, std::size_t store) {
    first_[location] = std::max(first_[location], static_cast<std::uint16_t>(store));
  }
  void join(const View& other) {
    for (std::size_t location = 0; location < kMaxLocations; ++location)
      first_[location] = std::max(first_[location], other.first_[location]);
  }

 private:
  std::array<std::uint16_t, kMaxLocations> first_{};
};

using Clock = std::array<std::uint32_t, kMaxThreads>;  // a vector clock

/// What one thread passes to another.
struct Knowledge {
  View view;
  Clock clock{};
  void join(const Knowledge& other);
};

class Memory {
 public:
  /// The stores of this location that the thread may read now, the newest first: how many.
  std::size_t readable(std::size_t thread, Address address, std::uint64_t initial);
  /// Of a location that was accessed before.
  std::uint64_t newest(Address address) { return location(address).stores.back().value; }
  /// Reads the store that is `age` stores older than the newest.
  std::uint64_t load(std::size_t thread, Address address, std::size_t age, Order order);
  void store(std::size_t thread, Address address, std::uint64_t value, Order order);
  /// Reads the newest store and replaces it; returns the old value.
  std::uint64_t exchange(std::size_t thread, Address address, std::uint64_t value, Order order);
  void fence(std::size_t thread, Order order);
  /// For what is not an atomic access, such as a mutex.
  Knowledge release(std::size_t thread);
  void acquire(std::size_t thread, const Knowledge& knowledge);

  /// A plain access. Returns the thread with which it races. Of a long range only both ends count:
  /// long ranges are buffers, which threads use as a whole.
  std::optional<std::size_t> read_plain(std::size_t thread, Address address, std::size_t bytes);
  std::optional<std::size_t> write_plain(std::size_t thread, Address address, std::size_t bytes);

 private:
  struct Store {
    std::uint64_t value;
    Knowledge released;
  };
  struct Location {
    std::size_t index;
    std::vector<Store> stores;
  };
  struct Thread {
    Knowledge current;
    Knowledge acquired;  // by relaxed loads: an acquire fence adds it to current
    Knowledge released;  // current at the last release fence: what relaxed stores carry
  };
  struct Cell {  // four bytes of plain memory
    Clock writes{};
    Clock reads{};
  };
  static std::vector<Address> cells_of(Address address, std::size_t bytes);
  Location& location(Address address) { return locations_.at(address); }
  void read(Thread& reader, Location& location, std::size_t store, Order order);
  void append(std::size_t thread, Location& location, std::uint64_t value, Order order,
              const Knowledge& sequence);
  [[nodiscard]] std::optional<std::size_t> unordered(const Clock& accesses,
                                                     std::size_t thread) const;

  std::unordered_map<Address, Location> locations_;
  std::unordered_map<Address, Cell> cells_;
  std::array<Thread, kMaxThreads> threads_;
  View seq_cst_;
};

}  // namespace tccl::model
