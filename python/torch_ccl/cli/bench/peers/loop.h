// The benchmark loop of `torch-ccl bench --peers`, the same for every library:
//
//   <program> <shared file> <operation> <warm-up> <bytes>:<iterations>...
//
// Rank 0 prints one line per size, {"bytes": 8, "us": [...]}: the time of each iteration, the
// maximum over the ranks. A size that takes longer than kTimeBudget has fewer iterations. Every
// iteration has new values, and its result is checked: the first and the last element of each
// block, after the last iteration every element.
//
// A Library has rank, size, allreduce(x, count) and broadcast(x, count), in place as in torch, and
// allgather(in, out, count) and alltoall(in, out, count), `count` per rank.
// `bytes` is the size of the whole result; for allgather and alltoall each rank contributes a part.
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
inline constexpr int kSpins = 2'000;  // before it yields
// Per size: some libraries are very slow with more ranks than cores.
inline constexpr auto kTimeBudget = std::chrono::seconds(5);
inline constexpr auto kBarrierTimeout = std::chrono::seconds(60);
inline constexpr std::size_t kAlignment = 64;  // as torch's tensors

inline void check(bool condition, const std::string& error) {
  if (!condition) throw std::runtime_error(error);
}

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

/// The launchers' own binding is off, so that every library uses the same cores.
/// Returns the number of usable cores.
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

/// State that the ranks share outside the library under test: a barrier and the measured times.
class SharedState {
 public:
  /// With more ranks than cores a spinning rank would delay another rank's call, so none spins.
  SharedState(const char* path, int rank, int size, int cores)
      : rank_(rank), size_(size), spins_(size > cores ? 0 : kSpins) {
    const std::size_t bytes = sizeof(Header) + sizeof(double) * kMaxIterations * size;
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    check(fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0,
          "cannot create the shared file");
    void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    close(fd);
    check(map != MAP_FAILED, "cannot map the shared file");
    header_ = static_cast<Header*>(map);
    times_us_ = reinterpret_cast<double*>(header_ + 1);
  }

  /// Ranks that have a core of their own leave it at the same moment.
  void barrier() {
    const long expected = ++barriers_ * size_;
    header_->arrived.fetch_add(1, std::memory_order_acq_rel);  // pairs with the load below
    const auto deadline = Clock::now() + kBarrierTimeout;
    for (int spins = 0; header_->arrived.load(std::memory_order_acquire) < expected; ++spins) {
      if (spins < spins_) {
        pause_cpu();
      } else {
        check(Clock::now() < deadline, "timed out waiting for another rank");
        sched_yield();
      }
    }
  }

  /// The number of the last iteration. Rank 0 sets it before the barrier of that iteration. It is a
  /// number, not a flag, because another rank may still be in the iteration before.
  void set_last(int iteration) { header_->last.store(iteration, std::memory_order_relaxed); }
  [[nodiscard]] int last() const { return header_->last.load(std::memory_order_relaxed); }

  void set_time(int iteration, double us) { times_us_[rank_ * kMaxIterations + iteration] = us; }
  [[nodiscard]] double max_over_ranks(int iteration) const {
    double us = 0;
    for (int r = 0; r < size_; ++r) us = std::max(us, times_us_[r * kMaxIterations + iteration]);
    return us;
  }

 private:
  struct Header {
    alignas(64) std::atomic<long> arrived;
    alignas(64) std::atomic<int> last;
  };
  int rank_;
  int size_;
  int spins_;
  long barriers_ = 0;
  Header* header_ = nullptr;
  double* times_us_ = nullptr;
};

/// Contents of a block: element j is `first + step * (j % 8)`. Sums of integers are exact.
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

inline bool matches(const float* block, std::size_t count, Pattern pattern, bool full) {
  if (!full) return block[0] == pattern.at(0) && block[count - 1] == pattern.at(count - 1);
  for (std::size_t j = 0; j < count; ++j) {
    if (block[j] != pattern.at(j)) return false;
  }
  return true;
}

/// A tensor has one block, or one block per rank. A result of one block is in place.
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
  throw std::runtime_error("unknown operation " + std::string(name));
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
void time_size(Library& library, const Operation<Library>& operation, SharedState& shared,
               std::size_t bytes, int warm_up, int iterations) {
  check(iterations > 0 && iterations <= kMaxIterations, "invalid number of iterations");
  const int in_blocks = operation.blocks_in ? library.size : 1;
  const int out_blocks = operation.blocks_out ? library.size : 1;
  const std::size_t count = std::max<std::size_t>(1, bytes / sizeof(float) / out_blocks);
  const Tensor in = make_tensor(count * in_blocks);
  const Tensor other = operation.blocks_out ? make_tensor(count * out_blocks) : nullptr;
  float* out = other ? other.get() : in.get();

  const auto budget_end = Clock::now() + kTimeBudget;
  bool last = false;
  int i = 0;
  for (; !last; ++i) {
    for (int b = 0; b < in_blocks; ++b) {
      fill(in.get() + b * count, count, input(i, library.rank, b));
    }
    if (library.rank == 0) {
      const bool over_budget = i >= warm_up && Clock::now() > budget_end;
      shared.set_last(over_budget ? i : warm_up + iterations - 1);
    }
    shared.barrier();
    const auto start = Clock::now();
    operation.call(library, in.get(), out, count);
    const std::chrono::duration<double, std::micro> us = Clock::now() - start;
    if (i >= warm_up) shared.set_time(i - warm_up, us.count());

    last = i == shared.last();
    for (int b = 0; b < out_blocks; ++b) {
      if (matches(out + b * count, count, operation.expected(library, i, b), last)) continue;
      throw std::runtime_error("wrong result in iteration " + std::to_string(i) + ", block " +
                               std::to_string(b) + " of " + std::string(operation.name) + ", " +
                               std::to_string(bytes) + " bytes");
    }
  }
  shared.barrier();  // every rank has written its times and checked its results
  if (library.rank == 0) {
    std::printf("{\"bytes\": %zu, \"us\": [", bytes);
    for (int t = 0; t < i - warm_up; ++t) {
      std::printf("%s%.3f", t ? ", " : "", shared.max_over_ranks(t));
    }
    std::printf("]}\n");
  }
  shared.barrier();  // no rank overwrites a time before rank 0 has printed it
}

template <class Library>
int run(Library& library, int argc, char** argv) try {
  check(argc > 4, "usage: <program> <shared file> <operation> <warm-up> <bytes>:<iterations>...");
  const int cores = pin_to_core(library.rank);
  SharedState shared(argv[1], library.rank, library.size, cores);
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
