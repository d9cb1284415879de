#include "transport/shm/local_agreement.h"

#include <cstring>

namespace tccl::shm {
namespace {

/// In the memory of the rank that wrote it; the characters follow.
struct TextHeader {
  std::uint32_t attempt;
  std::uint32_t bytes;
};

constexpr std::uint32_t attempt_of(std::uint64_t decision) {
  return static_cast<std::uint32_t>(decision >> 32);
}
constexpr int decider_of(std::uint64_t decision) {
  return static_cast<int>(decision & 0xffffffff) - 1;
}

}  // namespace

void LocalAgreement::offer(std::string_view text) {
  publish(group_.mine().agreement.offers[attempt_ % 2], text);
}

std::optional<std::string> LocalAgreement::offer_of(int local_rank) const {
  return read(local_rank, words(local_rank).offers[attempt_ % 2]);
}

bool LocalAgreement::decide(std::string_view outcome) {
  std::atomic<std::uint64_t>& word = words(0).decision;
  std::uint64_t current = word.load(std::memory_order_relaxed);  // a hint; the exchange checks it
  if (attempt_of(current) >= attempt_) return false;
  publish(group_.mine().agreement.outcomes[attempt_ % 2], outcome);
  const std::uint64_t decision =
      std::uint64_t{attempt_} << 32 | static_cast<std::uint64_t>(group_.local_rank() + 1);
  while (attempt_of(current) < attempt_)
    // Release: pairs with decision().
    if (word.compare_exchange_weak(current, decision, std::memory_order_acq_rel,
                                   std::memory_order_relaxed))
      return true;
  return false;
}

std::optional<std::string> LocalAgreement::decision() const {
  const std::uint64_t decision =
      words(0).decision.load(std::memory_order_acquire);  // pairs with decide()
  if (attempt_of(decision) != attempt_) return std::nullopt;
  const int decider = decider_of(decision);
  return read(decider, words(decider).outcomes[attempt_ % 2]);
}

std::uint32_t LocalAgreement::decided_attempt() const noexcept {
  return attempt_of(words(0).decision.load(std::memory_order_acquire));  // pairs with decide()
}

/// The memory is freed together with the region.
void LocalAgreement::publish(Offset& offset, std::string_view text) {
  std::size_t where = 0;
  std::byte* memory = group_.allocate_more(sizeof(TextHeader) + text.size(), &where);
  const TextHeader header{attempt_, static_cast<std::uint32_t>(text.size())};
  std::memcpy(memory, &header, sizeof header);
  std::memcpy(memory + sizeof header, text.data(), text.size());
  offset.store(where, std::memory_order_release);  // pairs with read()
}

std::optional<std::string> LocalAgreement::read(int local_rank, const Offset& offset) const {
  // Pairs with LocalGroup() and try_free(): the region may belong to another group now.
  if (group_.region(local_rank).group_uid.load(std::memory_order_acquire) != group_.group_uid())
    return std::nullopt;
  const std::uint64_t where = offset.load(std::memory_order_acquire);  // pairs with publish()
  if (where == 0) return std::nullopt;
  const std::byte* memory = group_.process(local_rank).base() + where;
  TextHeader header;
  std::memcpy(&header, memory, sizeof header);
  if (header.attempt != attempt_) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(memory) + sizeof header, header.bytes);
}

}  // namespace tccl::shm
