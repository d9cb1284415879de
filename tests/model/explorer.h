// Explorer: runs a small concurrent program again and again, each time with another order of its
// threads and with other values for its loads, as far as the C++ memory model allows them.
//
//   const Outcome outcome = explore({.preemptions = 2, .stale_reads = 2}, [](Execution& execution) {
//     State state;                                             // made anew for each execution
//     execution.share(&state, sizeof state);
//     execution.add_thread("writer", [&] { state.data = 1; state.ready.store(true, release); });
//     execution.add_thread("reader", [&] { if (state.ready.load(acquire)) require(state.data == 1, "data"); });
//     execution.join();
//   });
//   EXPECT_EQ(outcome.violation, "");
//
// The program is ordinary code, compiled with -fsanitize=thread: the compiler then calls a function
// for each access to memory, and tsan_interface.cc passes those to the Engine instead of to
// ThreadSanitizer. So what is explored is the code that runs in production, with its memory orders.
//
// What counts as a violation: a failed require(), an exception that a thread does not catch, a data
// race on shared memory, threads that all sleep for ever, and more than Bounds::operations in one
// execution. docs/dev/protocol-model.md says
// which executions are explored.
// Thread safety: none; the explored threads are fibers of the calling thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace tccl::model {

struct Bounds {
  int preemptions = 2;  // in one execution: a thread is interrupted although it could go on
  int stale_reads = 2;  // in one execution: a load returns a value that has been overwritten
  std::chrono::seconds time{300};   // of the whole exploration
  std::size_t operations = 20'000;  // of one execution; more count as a violation
};

struct Outcome {
  std::string violation;  // of the last execution; empty: none
  std::string trace;      // what its threads did
  std::size_t executions = 0;
  bool complete = false;  // all executions within the bounds on preemptions and stale reads
};

/// One execution.
class Execution {
 public:
  /// Accesses to this memory are explored; all others belong to one thread. Memory that is mapped
  /// twice is one `segment`.
  void share(const void* memory, std::size_t bytes);
  void share(const void* memory, std::size_t bytes, const void* segment);
  void add_thread(std::string name, std::function<void()> body);
  /// Runs the threads to their ends. What the caller did before, they see.
  void join();
};

Outcome explore(const Bounds& bounds, const std::function<void(Execution&)>& scenario);

// --- for the explored threads ---
/// Ends the exploration.
[[noreturn]] void report_violation(const std::string& text);
void require(bool condition, const char* text);
// Before accesses that the compiler does not instrument:
/// Other threads may run here.
void interruption_point();
/// A plain access to memory that may be shared.
void access(const void* memory, std::size_t bytes, bool is_write);

}  // namespace tccl::model
