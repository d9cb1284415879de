#include "base/cpu_set.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <new>

#include "base/format.h"
#include "tccl/error.h"

namespace tccl {
namespace {

constexpr int kMaxCpus = 1 << 16;  // above the limit of any kernel configuration

/// A cpu_set_t of any size: the fixed one ends at 1024 CPUs.
class CpuSet {
 public:
  explicit CpuSet(int cpus) : bytes_(CPU_ALLOC_SIZE(cpus)), set_(CPU_ALLOC(cpus)) {
    if (set_ == nullptr) throw std::bad_alloc();
    CPU_ZERO_S(bytes_, set_);
  }
  ~CpuSet() { CPU_FREE(set_); }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;

  void add(int cpu) { CPU_SET_S(static_cast<std::size_t>(cpu), bytes_, set_); }
  [[nodiscard]] bool has(int cpu) const {
    return CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes_, set_);
  }
  [[nodiscard]] bool equals(const CpuSet& other) const {
    return bytes_ == other.bytes_ && CPU_EQUAL_S(bytes_, set_, other.set_);
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] int cpus() const { return static_cast<int>(bytes_ * 8); }
  [[nodiscard]] cpu_set_t* get() const { return set_; }

 private:
  std::size_t bytes_;
  cpu_set_t* set_;
};

int parse_cpu(std::string_view* text) {
  while (text->starts_with(' ')) text->remove_prefix(1);
  int cpu = -1;
  const auto [end, problem] = std::from_chars(text->data(), text->data() + text->size(), cpu);
  if (problem != std::errc() || cpu < 0 || cpu >= kMaxCpus)
    throw Error(Errc::invalid_argument, "must be auto or CPUs, such as 0,1,28-31");
  text->remove_prefix(static_cast<std::size_t>(end - text->data()));
  return cpu;
}

bool take(std::string_view* text, char expected) {
  if (!text->starts_with(expected)) return false;
  text->remove_prefix(1);
  return true;
}

}  // namespace

std::vector<int> parse_cpus(std::string_view text) {
  std::vector<int> cpus;
  do {
    const int first = parse_cpu(&text);
    const int last = take(&text, '-') ? parse_cpu(&text) : first;
    if (last < first)
      throw Error(Errc::invalid_argument, "a range of CPUs must be ascending, such as 28-31");
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  } while (take(&text, ','));
  if (!text.empty()) throw Error(Errc::invalid_argument, "must be auto or CPUs, such as 0,1,28-31");
  return cpus;
}

std::string cpus_text(std::span<const int> cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(cpus[i]);
    if (last > i) text += (last > i + 1 ? '-' : ',') + std::to_string(cpus[last]);
    i = last + 1;
  }
  return text;
}

std::vector<int> cpus_of_this_thread() {
  for (int size = CPU_SETSIZE; size <= kMaxCpus; size *= 2) {
    const CpuSet set(size);
    if (::sched_getaffinity(0, set.bytes(), set.get()) != 0) {
      if (errno == EINVAL) continue;  // the kernel's mask is larger: try the next size
      break;
    }
    std::vector<int> cpus;
    for (int cpu = 0; cpu < set.cpus(); ++cpu)
      if (set.has(cpu)) cpus.push_back(cpu);
    return cpus;
  }
  return {0};  // at least the CPU that runs this code
}

bool pin(pthread_t thread, std::span<const int> cpus) {
  if (cpus.empty()) return false;
  for (int size = CPU_SETSIZE; size <= kMaxCpus; size *= 2) {
    if (std::ranges::max(cpus) >= size) continue;
    CpuSet wanted(size);
    const CpuSet before(size);
    if (::pthread_getaffinity_np(thread, before.bytes(), before.get()) == EINVAL) continue;
    for (const int cpu : cpus) wanted.add(cpu);
    if (::pthread_setaffinity_np(thread, wanted.bytes(), wanted.get()) != 0) return false;
    // The kernel drops CPUs that it cannot grant and fails only if none is left.
    const CpuSet given(size);
    ::pthread_getaffinity_np(thread, given.bytes(), given.get());
    if (given.equals(wanted)) return true;
    ::pthread_setaffinity_np(thread, before.bytes(), before.get());
    return false;
  }
  return false;
}

std::vector<int> unavailable_cpus(std::span<const int> cpus) {
  if (cpus.empty()) return {};
  const std::vector<int> before = cpus_of_this_thread();
  std::vector<int> unavailable;
  for (const int cpu : cpus)
    if (!pin(::pthread_self(), {&cpu, 1})) unavailable.push_back(cpu);
  pin(::pthread_self(), before);
  return unavailable;
}

}  // namespace tccl
