// The loop that every program of `torch-ccl bench --peers` runs, whatever library is below it:
//
//   <program> <shared file> <operation> <warm-up> <bytes>:<iterations>...
//
// Rank 0 prints one line per size, {"bytes": 8, "us": [...]}: each iteration's time, the maximum
// over the ranks; fewer than asked for if a size takes longer than kBudget. Values are new in each
// iteration, and results are looked at after each: the ends of every block, after the last
// iteration all of it.
//
// A Library has rank, size, allreduce(x, count) and broadcast(x, count) in place, as torch calls
// them, and allgather(in, out, count) and alltoall(in, out, count), `count` per rank.
// `bytes` is the whole result, of which each rank brings a part to allgather and alltoall.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace loop {

using Clock = std::chrono::steady_clock;

inline constexpr int kMaxIterations = 10'000;
inline constexpr int kSpins = 2'000;  // then it yields
inline constexpr auto kBudget =
    std::chrono::seconds(5);  // some libraries crawl without a core each
inline constexpr auto kBound = std::chrono::seconds(60);
inline constexpr std::size_t kAlignment = 64;  // of tensors in torch

inline void check(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// The libraries' own binding is switched off, so that all of them run on the same cores.
/// Returns how many cores there are.
inline int pin_to_core(int rank) {
  cpu_set_t allowed;
  check(sched_getaffinity(0, sizeof(allowed), &allowed) == 0, "sched_getaffinity failed");
  int skip = rank % CPU_COUNT(&allowed);
  int core = 0;
  while (!CPU_ISSET(core, &allowed) || skip-- > 0) ++core;
  cpu_set_t mine;
  CPU_ZERO(&mine);
  CPU_SET(core, &mine);
  check(sched_setaffinity(0, sizeof(mine), &mine) == 0, "sched_setaffinity failed");
  return CPU_COUNT(&allowed);
}

/// What the ranks share beside the library under test: a counter at which they meet, and times.
class Shared {
 public:
  /// Where ranks share a core, a rank that spun would keep another from ending its call.
  Shared(const char* path, int rank, int size, int cores)
      : rank_(rank), size_(size), spins_(size > cores ? 0 : kSpins) {
    const std::size_t bytes = sizeof(Head) + sizeof(double) * kMaxIterations * size;
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    check(fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0, "cannot make the shared file");
    void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    close(fd);
    check(map != MAP_FAILED, "cannot map the shared file");
    head_ = static_cast<Head*>(map);
    times_us_ = reinterpret_cast<double*>(head_ + 1);
  }

  /// Returns when all ranks have called it, at the same moment on all that have a core.
  void rendezvous() {
    const long goal = ++meetings_ * size_;
    head_->arrived.fetch_add(1, std::memory_order_acq_rel);  // pairs with the load below
    const auto deadline = Clock::now() + kBound;
    for (int spins = 0; head_->arrived.load(std::memory_order_acquire) < goal; ++spins) {
      if (spins < spins_) {
        pause_cpu();
      } else {
        check(Clock::now() < deadline, "another rank did not come");
        sched_yield();
      }
    }
  }

  /// Which iteration is the last. Set by one rank before the meeting of that iteration at the
  /// latest; a rank that is an iteration behind is not disturbed, as a flag would disturb it.
  void set_last(int iteration) { head_->last.store(iteration, std::memory_order_relaxed); }
  [[nodiscard]] int last() const { return head_->last.load(std::memory_order_relaxed); }

  void set_time(int iteration, double us) { times_us_[rank_ * kMaxIterations + iteration] = us; }
  [[nodiscard]] double longest(int iteration) const {
    double us = 0;
    for (int r = 0; r < size_; ++r) us = std::max(us, times_us_[r * kMaxIterations + iteration]);
    return us;
  }

 private:
  struct Head {
    alignas(64) std::atomic<long> arrived;
    alignas(64) std::atomic<int> last;
  };
  int rank_;
  int size_;
  int spins_;
  long meetings_ = 0;
  Head* head_ = nullptr;
  double* times_us_ = nullptr;
};

/// What a block holds: element j is `first + step * (j % 8)`. Whole numbers: sums are exact.
struct Pattern {
  int first = 0;
  int step = 1;
  [[nodiscard]] float at(std::size_t j) const {
    return static_cast<float>(first + step * static_cast<int>(j % 8));
  }
};

inline Pattern input(int iteration, int rank, int block) {
  return {(iteration * 5 + rank * 3 + block * 7) % 64, 1};
}

inline void fill(float* block, std::size_t count, Pattern pattern) {
  for (std::size_t j = 0; j < count; ++j) block[j] = pattern.at(j);
}

inline bool holds(const float* block, std::size_t count, Pattern pattern, bool all_of_it) {
  if (!all_of_it) return block[0] == pattern.at(0) && block[count - 1] == pattern.at(count - 1);
  for (std::size_t j = 0; j < count; ++j) {
    if (block[j] != pattern.at(j)) return false;
  }
  return true;
}

/// A tensor is one block, or one per rank. Without blocks in the result it is in place.
template <class Library>
struct Operation {
  std::string_view name;
  bool blocks_in;
  bool blocks_out;
  void (*call)(Library&, float* in, float* out, std::size_t count);
  Pattern (*expected)(const Library&, int iteration, int block);
};

template <class Library>
Pattern sum_of_all(const Library& library, int iteration, int /*block*/) {
  Pattern sum{0, 0};
  for (int r = 0; r < library.size; ++r) {
    const Pattern one = input(iteration, r, 0);
    sum = {sum.first + one.first, sum.step + one.step};
  }
  return sum;
}

template <class L>
inline const Operation<L> kOperations[] = {
    {"all_reduce", false, false, [](L& l, float* x, float*, std::size_t n) { l.allreduce(x, n); },
     sum_of_all<L>},
    {"broadcast", false, false, [](L& l, float* x, float*, std::size_t n) { l.broadcast(x, n); },
     [](const L&, int i, int) { return input(i, 0, 0); }},
    {"all_gather", false, true,
     [](L& l, float* in, float* out, std::size_t n) { l.allgather(in, out, n); },
     [](const L&, int i, int block) { return input(i, block, 0); }},
    {"all_to_all", true, true,
     [](L& l, float* in, float* out, std::size_t n) { l.alltoall(in, out, n); },
     [](const L& l, int i, int block) { return input(i, block, l.rank); }},
};

template <class Library>
const Operation<Library>& find(std::string_view name) {
  for (const auto& operation : kOperations<Library>) {
    if (operation.name == name) return operation;
  }
  throw std::runtime_error("no operation " + std::string(name));
}

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};
using Tensor = std::unique_ptr<float, Free>;

inline Tensor make_tensor(std::size_t count) {
  const std::size_t bytes = (count * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
  Tensor tensor(static_cast<float*>(std::aligned_alloc(kAlignment, bytes)));
  check(tensor != nullptr, "out of memory");
  return tensor;
}

template <class Library>
void time_size(Library& library, const Operation<Library>& operation, Shared& shared,
               std::size_t bytes, int warm_up, int iterations) {
  check(iterations > 0 && iterations <= kMaxIterations, "no such number of iterations");
  const int in_blocks = operation.blocks_in ? library.size : 1;
  const int out_blocks = operation.blocks_out ? library.size : 1;
  const std::size_t count = std::max<std::size_t>(1, bytes / sizeof(float) / out_blocks);
  const Tensor in = make_tensor(count * in_blocks);
  const Tensor other = operation.blocks_out ? make_tensor(count * out_blocks) : nullptr;
  float* out = other ? other.get() : in.get();

  const auto enough_at = Clock::now() + kBudget;
  bool last = false;
  int i = 0;
  for (; !last; ++i) {
    for (int b = 0; b < in_blocks; ++b) {
      fill(in.get() + b * count, count, input(i, library.rank, b));
    }
    if (library.rank == 0) {
      const bool enough = i >= warm_up && Clock::now() > enough_at;
      shared.set_last(enough ? i : warm_up + iterations - 1);
    }
    shared.meet();
    const auto start = Clock::now();
    operation.call(library, in.get(), out, count);
    const std::chrono::duration<double, std::micro> us = Clock::now() - start;
    if (i >= warm_up) shared.set_time(i - warm_up, us.count());

    last = i == shared.last();
    for (int b = 0; b < out_blocks; ++b) {
      if (holds(out + b * count, count, operation.expected(library, i, b), last)) continue;
      throw std::runtime_error("wrong result in iteration " + std::to_string(i) + ", block " +
                               std::to_string(b) + " of " + std::string(operation.name) + ", " +
                               std::to_string(bytes) + " bytes");
    }
  }
  shared.meet();  // all times are there, all results were right
  if (library.rank == 0) {
    std::printf("{\"bytes\": %zu, \"us\": [", bytes);
    for (int t = 0; t < i - warm_up; ++t) std::printf("%s%.3f", t ? ", " : "", shared.longest(t));
    std::printf("]}\n");
  }
  shared.meet();  // nobody overwrites a time before it is printed
}

template <class Library>
int run(Library& library, int argc, char** argv) try {
  check(argc > 4, "usage: <program> <shared file> <operation> <warm-up> <bytes>:<iterations>...");
  const int cores = pin_to_core(library.rank);
  Shared shared(argv[1], library.rank, library.size, cores);
  const auto& operation = find<Library>(argv[2]);
  const int warm_up = std::stoi(argv[3]);
  for (int i = 4; i < argc; ++i) {
    const std::string size = argv[i];
    const std::size_t colon = size.find(':');
    check(colon != std::string::npos, "expected <bytes>:<iterations>, not " + size);
    time_size(library, operation, shared, std::stoull(size), warm_up,
              std::stoi(size.substr(colon + 1)));
  }
  std::fflush(stdout);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "rank %d: %s\n", library.rank, e.what());
  return 1;
}

}  // namespace loop
