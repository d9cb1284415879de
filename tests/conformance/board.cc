#include "board.h"

#include <sys/mman.h>

#include <new>

namespace conformance {

Board::Board(int ranks, std::size_t cases)
    : ranks_(ranks),
      bytes_((kFieldCount + cases) * static_cast<std::size_t>(ranks) * sizeof(Cell)) {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  cells_ = static_cast<Cell*>(memory);  // zero pages are atomics that hold 0
}

Board::~Board() { munmap(cells_, bytes_); }

Board::Cell& Board::cell(int rank, Field field) const {
  return cells_[static_cast<std::size_t>(rank) * kFieldCount + field];
}

Board::Cell& Board::hash_cell(int rank, std::uint64_t case_index) const {
  const auto ranks = static_cast<std::size_t>(ranks_);
  return cells_[kFieldCount * ranks + case_index * ranks + static_cast<std::size_t>(rank)];
}

void Board::begin(int rank, std::uint64_t case_index) {
  cell(rank, kBegun).store(case_index + 1, std::memory_order_relaxed);
}

std::uint64_t Board::begun(int rank) const {
  return cell(rank, kBegun).load(std::memory_order_relaxed);
}

void Board::count_finished(int rank) {
  cell(rank, kFinished).fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t Board::finished(int rank) const {
  return cell(rank, kFinished).load(std::memory_order_relaxed);
}

std::uint64_t Board::progress() const {
  std::uint64_t sum = 0;
  for (int rank = 0; rank < ranks_; ++rank) sum += begun(rank) + finished(rank);
  return sum;
}

void Board::count_failure(int rank) {
  cell(rank, kFailures).fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t Board::failures(int rank) const {
  return cell(rank, kFailures).load(std::memory_order_relaxed);
}

void Board::set_hash(int rank, std::uint64_t case_index, std::uint64_t hash) {
  hash_cell(rank, case_index).store(hash | 1, std::memory_order_relaxed);  // never 0
}

std::uint64_t Board::hash(int rank, std::uint64_t case_index) const {
  return hash_cell(rank, case_index).load(std::memory_order_relaxed);
}

}  // namespace conformance
