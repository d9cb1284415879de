// Progress, failures and result hashes of all ranks of a run, in memory shared with the parent
// process.
//
// Thread-safe, also between processes. All accesses are relaxed: an ordering made here would hide a
// missing one in the library from ThreadSanitizer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace conformance {

class RunState {
 public:
  /// Shared with processes forked later.
  RunState(int ranks, std::size_t cases);
  ~RunState();
  RunState(const RunState&) = delete;
  RunState& operator=(const RunState&) = delete;

  /// The rank is about to run this case. Cases are begun in order.
  void begin(int rank, std::uint64_t case_index);
  /// Index of the latest case begun, plus one; 0 if none.
  [[nodiscard]] std::uint64_t begun(int rank) const;

  void count_finished(int rank);
  [[nodiscard]] std::uint64_t finished(int rank) const;
  /// Increases whenever any rank begins or finishes a case.
  [[nodiscard]] std::uint64_t progress() const;

  void count_failure(int rank);
  [[nodiscard]] std::uint64_t failures(int rank) const;

  /// Hash of a rank's output of a case, 0 before it is known.
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
