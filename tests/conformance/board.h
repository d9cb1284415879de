// What the ranks of a run tell their parent and each other, in memory of the test's own.
//
// Safe from any thread and process. All accesses are relaxed: an ordering made here would hide a
// missing one in the library from the thread sanitizer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace conformance {

class Board {
 public:
  /// Shared with processes forked later.
  Board(int ranks, std::size_t cases);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  /// The rank is about to call the library for this case. Cases are begun in their order.
  void begin(int rank, std::uint64_t case_index);
  /// Index of the latest case begun, plus one; 0 if none.
  [[nodiscard]] std::uint64_t begun(int rank) const;

  void count_finished(int rank);
  [[nodiscard]] std::uint64_t finished(int rank) const;
  /// Grows whenever anything is begun or finished anywhere.
  [[nodiscard]] std::uint64_t progress() const;

  void count_failure(int rank);
  [[nodiscard]] std::uint64_t failures(int rank) const;

  /// Hash of what a rank got from a case, 0 until it is known.
  void set_hash(int rank, std::uint64_t case_index, std::uint64_t hash);
  [[nodiscard]] std::uint64_t hash(int rank, std::uint64_t case_index) const;

 private:
  using Cell = std::atomic<std::uint64_t>;
  static_assert(Cell::is_always_lock_free);
  enum Field : std::size_t { kBegun, kFinished, kFailures, kFieldCount };

  [[nodiscard]] Cell& cell(int rank, Field field) const;
  [[nodiscard]] Cell& hash_cell(int rank, std::uint64_t case_index) const;

  int ranks_;
  std::size_t bytes_;
  Cell* cells_;  // fields of all ranks, then hashes of all cases
};

}  // namespace conformance
