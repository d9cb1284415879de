#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <new>

#include "base/format.h"
#include "tccl/error.h"

namespace tccl {
namespace {

constexpr int kMaxCores = 1 << 16;  // above the limit of any kernel configuration

/// A cpu_set_t of any size: the fixed one ends at 1024 cores.
class CoreSet {
 public:
  explicit CoreSet(int cores) : bytes_(CPU_ALLOC_SIZE(cores)), set_(CPU_ALLOC(cores)) {
    if (set_ == nullptr) throw std::bad_alloc();
    CPU_ZERO_S(bytes_, set_);
  }
  ~CoreSet() { CPU_FREE(set_); }
  CoreSet(const CoreSet&) = delete;
  CoreSet& operator=(const CoreSet&) = delete;

  void add(int core) { CPU_SET_S(static_cast<std::size_t>(core), bytes_, set_); }
  [[nodiscard]] bool has(int core) const {
    return CPU_ISSET_S(static_cast<std::size_t>(core), bytes_, set_);
  }
  [[nodiscard]] bool equals(const CoreSet& other) const {
    return bytes_ == other.bytes_ && CPU_EQUAL_S(bytes_, set_, other.set_);
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] int cores() const { return static_cast<int>(bytes_ * 8); }
  [[nodiscard]] cpu_set_t* get() const { return set_; }

 private:
  std::size_t bytes_;
  cpu_set_t* set_;
};

int parse_core(std::string_view* text) {
  int core = -1;
  const auto [end, problem] = std::from_chars(text->data(), text->data() + text->size(), core);
  if (problem != std::errc() || core < 0 || core >= kMaxCores)
    throw Error(Errc::invalid_argument, "must be auto or cores, such as 0,1,28-31");
  text->remove_prefix(static_cast<std::size_t>(end - text->data()));
  return core;
}

bool take(std::string_view* text, char expected) {
  if (!text->starts_with(expected)) return false;
  text->remove_prefix(1);
  return true;
}

}  // namespace

std::vector<int> parse_cores(std::string_view text) {
  std::vector<int> cores;
  do {
    const int first = parse_core(&text);
    const int last = take(&text, '-') ? parse_core(&text) : first;
    if (last < first) throw Error(Errc::invalid_argument, "a range of cores must go upwards");
    for (int core = first; core <= last; ++core) cores.push_back(core);
  } while (take(&text, ','));
  if (!text.empty())
    throw Error(Errc::invalid_argument, "must be auto or cores, such as 0,1,28-31");
  return cores;
}

std::string cores_text(std::span<const int> cores) {
  std::string text;
  for (std::size_t i = 0; i < cores.size();) {
    std::size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(cores[i]);
    if (last > i) text += (last > i + 1 ? '-' : ',') + std::to_string(cores[last]);
    i = last + 1;
  }
  return text;
}

std::vector<int> cores_of_this_thread() {
  for (int size = CPU_SETSIZE; size <= kMaxCores; size *= 2) {
    const CoreSet set(size);
    if (::sched_getaffinity(0, set.bytes(), set.get()) != 0) {
      if (errno == EINVAL) continue;  // the kernel's mask is larger: try the next size
      break;
    }
    std::vector<int> cores;
    for (int core = 0; core < set.cores(); ++core)
      if (set.has(core)) cores.push_back(core);
    return cores;
  }
  return {0};  // at least the core that runs this code
}

bool pin(pthread_t thread, std::span<const int> cores) {
  if (cores.empty()) return false;
  for (int size = CPU_SETSIZE; size <= kMaxCores; size *= 2) {
    if (std::ranges::max(cores) >= size) continue;
    CoreSet wanted(size);
    const CoreSet before(size);
    if (::pthread_getaffinity_np(thread, before.bytes(), before.get()) == EINVAL) continue;
    for (const int core : cores) wanted.add(core);
    if (::pthread_setaffinity_np(thread, wanted.bytes(), wanted.get()) != 0) return false;
    // The kernel drops cores that it cannot grant and fails only if none is left.
    const CoreSet given(size);
    ::pthread_getaffinity_np(thread, given.bytes(), given.get());
    if (given.equals(wanted)) return true;
    ::pthread_setaffinity_np(thread, before.bytes(), before.get());
    return false;
  }
  return false;
}

}  // namespace tccl
