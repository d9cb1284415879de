#include "model/memory_model.h"

#include <cstdlib>

namespace tccl::model {

void Knowledge::join(const Knowledge& other) {
  view.join(other.view);
  for (std::size_t thread = 0; thread < kMaxThreads; ++thread)
    clock[thread] = std::max(clock[thread], other.clock[thread]);
}

// ---- atomics ----

std::size_t Memory::readable(std::size_t thread, Address address, std::uint64_t initial) {
  const auto [found, is_new] = locations_.try_emplace(address, Location{locations_.size(), {}});
  Location& location = found->second;
  if (is_new) {
    if (location.index == View::kMaxLocations) std::abort();
    location.stores.push_back({initial, {}});  // from before the threads
  }
  return location.stores.size() - threads_[thread].current.view.of(location.index);
}

void Memory::read(Thread& reader, Location& location, std::size_t store, Order order) {
  const Knowledge& released = location.stores[store].released;
  (acquires(order) ? reader.current : reader.acquired).join(released);
  reader.current.view.raise(location.index, store);
}

std::uint64_t Memory::load(std::size_t thread, Address address, std::size_t age, Order order) {
  Location& from = location(address);
  const std::size_t store = from.stores.size() - 1 - age;
  read(threads_[thread], from, store, order);
  return from.stores[store].value;
}

/// `sequence`: what the store that a read-modify-write replaces carries (a release sequence).
void Memory::append(std::size_t thread, Location& location, std::uint64_t value, Order order,
                    const Knowledge& sequence) {
  Thread& writer = threads_[thread];
  ++writer.current.clock[thread];
  writer.current.view.raise(location.index, location.stores.size());
  Knowledge released = releases(order) ? writer.current : writer.released;
  released.view.raise(location.index, location.stores.size());
  released.join(sequence);
  location.stores.push_back({value, std::move(released)});
  ++writer.current.clock[thread];  // what follows is not released
}

void Memory::store(std::size_t thread, Address address, std::uint64_t value, Order order) {
  append(thread, location(address), value, order, {});
}

std::uint64_t Memory::exchange(std::size_t thread, Address address, std::uint64_t value,
                               Order order) {
  Location& at = location(address);
  const Store newest = at.stores.back();
  read(threads_[thread], at, at.stores.size() - 1, order);
  append(thread, at, value, order, newest.released);
  return newest.value;
}

void Memory::fence(std::size_t thread, Order order) {
  Thread& self = threads_[thread];
  if (acquires(order)) self.current.join(self.acquired);
  if (order == Order::seq_cst) {
    self.current.view.join(seq_cst_);
    seq_cst_ = self.current.view;
  }
  if (releases(order)) {
    ++self.current.clock[thread];
    self.released = self.current;
    ++self.current.clock[thread];
  }
}

Knowledge Memory::release(std::size_t thread) {
  Knowledge& current = threads_[thread].current;
  ++current.clock[thread];
  Knowledge released = current;
  ++current.clock[thread];
  return released;
}

void Memory::acquire(std::size_t thread, const Knowledge& knowledge) {
  threads_[thread].current.join(knowledge);
}

// ---- plain accesses ----

std::vector<Address> Memory::cells_of(Address address, std::size_t bytes) {
  constexpr Address kEnds = 16;
  const Address first = address / 4;
  const Address last = (address + bytes - 1) / 4;
  std::vector<Address> cells;
  for (Address cell = first; cell <= last; ++cell) {
    if (cell == first + kEnds && last > first + 2 * kEnds) cell = last - kEnds;
    cells.push_back(cell);
  }
  return cells;
}

std::optional<std::size_t> Memory::unordered(const Clock& accesses, std::size_t thread) const {
  const Clock& seen = threads_[thread].current.clock;
  for (std::size_t other = 0; other < kMaxThreads; ++other)
    if (other != thread && accesses[other] > seen[other]) return other;
  return std::nullopt;
}

std::optional<std::size_t> Memory::read_plain(std::size_t thread, Address address,
                                              std::size_t bytes) {
  for (const Address cell : cells_of(address, bytes)) {
    Cell& at = cells_[cell];
    if (const auto other = unordered(at.writes, thread)) return other;
    at.reads[thread] = threads_[thread].current.clock[thread] + 1;
  }
  return std::nullopt;
}

std::optional<std::size_t> Memory::write_plain(std::size_t thread, Address address,
                                               std::size_t bytes) {
  for (const Address cell : cells_of(address, bytes)) {
    Cell& at = cells_[cell];
    for (const Clock& accesses : {at.writes, at.reads})
      if (const auto other = unordered(accesses, thread)) return other;
    at.writes[thread] = threads_[thread].current.clock[thread] + 1;
  }
  return std::nullopt;
}

}  // namespace tccl::model
