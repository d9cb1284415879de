#include "run_state.h"

#include <sys/mman.h>

#include <new>

namespace conformance {

RunState::RunState(int ranks, std::size_t cases)
    : ranks_(ranks),
      bytes_((kFieldCount + cases) * static_cast<std::size_t>(ranks) * sizeof(Cell)) {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  cells_ = static_cast<Cell*>(memory);  // zero-filled: all atomics are 0
}

RunState::~RunState() { munmap(cells_, bytes_); }

RunState::Cell& RunState::cell(int rank, Field field) const {
  return cells_[static_cast<std::size_t>(rank) * kFieldCount + field];
}

RunState::Cell& RunState::hash_cell(int rank, std::uint64_t case_index) const {
  const auto ranks = static_cast<std::size_t>(ranks_);
  return cells_[kFieldCount * ranks + case_index * ranks + static_cast<std::size_t>(rank)];
}

void RunState::begin(int rank, std::uint64_t case_index) {
  cell(rank, kBegun).store(case_index + 1, std::memory_order_relaxed);
}

std::uint64_t RunState::begun(int rank) const {
  return cell(rank, kBegun).load(std::memory_order_relaxed);
}

void RunState::count_finished(int rank) {
  cell(rank, kFinished).fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t RunState::finished(int rank) const {
  return cell(rank, kFinished).load(std::memory_order_relaxed);
}

std::uint64_t RunState::progress() const {
  std::uint64_t sum = 0;
  for (int rank = 0; rank < ranks_; ++rank) sum += begun(rank) + finished(rank);
  return sum;
}

void RunState::count_failure(int rank) {
  cell(rank, kFailures).fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t RunState::failures(int rank) const {
  return cell(rank, kFailures).load(std::memory_order_relaxed);
}

void RunState::set_hash(int rank, std::uint64_t case_index, std::uint64_t hash) {
  hash_cell(rank, case_index).store(hash | 1, std::memory_order_relaxed);  // never 0
}

std::uint64_t RunState::hash(int rank, std::uint64_t case_index) const {
  return hash_cell(rank, case_index).load(std::memory_order_relaxed);
}

}  // namespace conformance
