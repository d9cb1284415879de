// Engine: the executions of explore(). Threads are fibers; before each access to shared memory that
// several threads write, another one may be scheduled. Every decision (which thread, which store a
// load reads) is recorded; the next execution repeats all but the last and takes the next
// alternative there, until there is none left.
//
// Only accesses to locations that some thread writes and another one uses are scheduling points. The
// set of these locations grows while executions run; when it does, the exploration starts again.
// Thread safety: none.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "model/explorer.h"
#include "model/memory_model.h"

namespace tccl::model {

class Engine {
 public:
  /// The one that explores now; null outside of explore().
  static Engine* current();
  /// The same, in an explored thread only.
  static Engine* exploring() {
    Engine* engine = current();
    return engine != nullptr && engine->in_thread() ? engine : nullptr;
  }

  Outcome explore(const Bounds& bounds, const std::function<void(Execution&)>& scenario);

  // --- Execution ---
  void share(const void* memory, std::size_t bytes, const void* segment);
  void add_thread(std::string name, std::function<void()> body);
  void join();

  // --- accesses; in a thread ---
  [[nodiscard]] bool in_thread() const { return running_ != kNone; }
  /// None for memory that is not shared.
  [[nodiscard]] std::optional<Address> address_of(const void* memory) const;
  std::uint64_t load(Address address, std::uint64_t real_value, Order order);
  void store(Address address, std::uint64_t real_value, std::uint64_t value, Order order);
  /// Returns the old value. `change` gets it and returns the new one, or none to leave it.
  using Change = std::function<std::optional<std::uint64_t>(std::uint64_t)>;
  std::uint64_t modify(Address address, std::uint64_t real_value, const Change& change, Order order,
                       Order order_of_failure);
  void fence(Order order);
  void plain_access(const void* memory, std::size_t bytes, bool is_write);
  void interruption_point();

  /// In milliseconds.
  int next_time() { return ++time_; }

  // --- threads that wait ---
  /// Like futex(FUTEX_WAIT) without a timeout.
  void sleep(Address address, std::uint64_t real_value, std::uint32_t expected);
  void wake(Address address);
  void lock(const void* mutex);
  void unlock(const void* mutex);
  [[noreturn]] void violation(const std::string& text);

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  static constexpr std::size_t kStackBytes = std::size_t{256} << 10;

  struct Fiber {
    std::string name;
    std::function<void()> body;
    ucontext_t context{};
    bool finished = false;
    std::optional<Address> sleeps_on;
    const void* waits_for = nullptr;  // a mutex
    // libstdc++'s state of the exceptions that this thread handles:
    void* caught_exceptions = nullptr;
    unsigned uncaught_exceptions = 0;
  };
  struct Mapping {
    std::uintptr_t begin, end;
    Address address;
  };
  struct Mutex {
    std::size_t owner = kNone;
    Knowledge released;
  };
  struct Decision {
    std::size_t chosen, alternatives;
  };
  struct Use {
    unsigned threads = 0;  // one bit each
    bool written = false;
  };

  bool execute(const std::function<void(Execution&)>& scenario);
  bool next_path();
  void reset();
  std::size_t decide(std::size_t alternatives);
  [[nodiscard]] bool may_run(const Fiber& fiber) const;
  void schedule();
  void block();
  void switch_to(std::size_t thread);
  void enter(Address address, bool writes);
  static void run_fiber();
  void note(const char* what, Address address, std::uint64_t value, Order order);
  [[nodiscard]] std::string trace() const;

  Bounds bounds_;
  std::vector<Decision> path_;
  std::unordered_set<Address> contended_;
  bool contended_grew_ = false;
  Outcome outcome_;
  ucontext_t main_context_{};

  std::vector<std::unique_ptr<char[]>> stacks_;  // NOLINT(modernize-avoid-c-arrays): of fibers

  // --- of one execution ---
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Mapping> mappings_;
  std::map<const void*, Address> segments_;
  std::map<const void*, Mutex> mutexes_;
  std::unordered_map<Address, Use> uses_;
  Memory memory_;
  std::size_t running_ = kNone;
  std::size_t next_decision_ = 0;
  int preemptions_ = 0;
  int stale_reads_ = 0;
  std::size_t operations_ = 0;
  int time_ = 0;
  struct Event {
    std::size_t thread;
    const char* what;
    Address address;
    std::uint64_t value;
    Order order;
  };
  std::vector<Event> events_;
};

}  // namespace tccl::model
