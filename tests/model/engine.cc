#include "model/engine.h"

#include <cxxabi.h>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

namespace tccl::model {
namespace {

thread_local Engine* engine = nullptr;  // other threads of the process are not explored
constexpr Address kSegmentBytes = Address{1} << 40;

/// What __cxa_get_globals() points to, by the Itanium C++ ABI.
struct ExceptionState {
  void* caught;
  unsigned uncaught;
};
ExceptionState& exception_state() {
  return *reinterpret_cast<ExceptionState*>(abi::__cxa_get_globals());
}

struct Violation {};

const char* name_of(Order order) {
  constexpr const char* kNames[] = {"relaxed", "consume", "acquire",
                                    "release", "acq_rel", "seq_cst"};
  return kNames[static_cast<std::size_t>(order)];
}

}  // namespace

Engine* Engine::current() { return engine; }

// ---- executions ----

Outcome Engine::explore(const Bounds& bounds, const std::function<void(Execution&)>& scenario) {
  using SteadyClock = std::chrono::steady_clock;
  const auto end = SteadyClock::now() + bounds.time;
  bounds_ = bounds;
  engine = this;
  while (!outcome_.complete && SteadyClock::now() < end) {
    ++outcome_.executions;
    if (!execute(scenario)) break;
    if (std::exchange(contended_grew_, false))
      path_.clear();
    else
      outcome_.complete = !next_path();
  }
  engine = nullptr;
  return outcome_;
}

void Engine::reset() {
  fibers_.clear();
  mappings_.clear();
  segments_.clear();
  mutexes_.clear();
  uses_.clear();
  memory_ = {};
  next_decision_ = 0;
  preemptions_ = stale_reads_ = 0;
  operations_ = 0;
  time_ = 0;
  events_.clear();
}

/// False after a violation. Its threads are abandoned where they are.
bool Engine::execute(const std::function<void(Execution&)>& scenario) {
  reset();
  Execution execution;
  try {
    scenario(execution);
  } catch (const Violation&) {
  }
  return outcome_.violation.empty();
}

bool Engine::next_path() {
  while (!path_.empty() && path_.back().chosen + 1 == path_.back().alternatives) path_.pop_back();
  if (path_.empty()) return false;
  ++path_.back().chosen;
  return true;
}

std::size_t Engine::decide(std::size_t alternatives) {
  if (alternatives == 1) return 0;
  if (next_decision_ == path_.size()) path_.push_back({0, alternatives});
  const Decision& decision = path_[next_decision_++];
  if (decision.alternatives != alternatives) {
    std::fputs("explorer: the program is not deterministic\n", stderr);
    std::abort();
  }
  return decision.chosen;
}

// ---- threads ----

void Engine::add_thread(std::string name, std::function<void()> body) {
  auto fiber = std::make_unique<Fiber>();
  fiber->name = std::move(name);
  fiber->body = std::move(body);
  ::getcontext(&fiber->context);
  if (stacks_.size() == fibers_.size()) stacks_.emplace_back(new char[kStackBytes]);
  fiber->context.uc_stack.ss_sp = stacks_[fibers_.size()].get();
  fiber->context.uc_stack.ss_size = kStackBytes;
  ::makecontext(&fiber->context, &Engine::run_fiber, 0);
  fibers_.push_back(std::move(fiber));
}

void Engine::run_fiber() {
  Fiber& self = *engine->fibers_[engine->running_];
  std::string exception;
  try {
    self.body();
  } catch (const std::exception& error) {
    exception = error.what();
  }
  if (!exception.empty()) engine->violation("an exception: " + exception);
  self.finished = true;
  engine->block();
}

/// Returns when all threads have ended, or after a violation.
void Engine::join() {
  const ExceptionState state = exception_state();
  running_ = decide(fibers_.size());
  exception_state() = {};
  ::swapcontext(&main_context_, &fibers_[running_]->context);
  running_ = kNone;
  exception_state() = state;
  if (!outcome_.violation.empty()) throw Violation();
}

bool Engine::may_run(const Fiber& fiber) const {
  if (fiber.finished || fiber.sleeps_on) return false;
  if (fiber.waits_for == nullptr) return true;
  const auto mutex = mutexes_.find(fiber.waits_for);
  return mutex == mutexes_.end() || mutex->second.owner == kNone;
}

void Engine::switch_to(std::size_t thread) {
  if (thread == running_) return;
  Fiber& from = *fibers_[running_];
  const Fiber& to = *fibers_[thread];
  from.caught_exceptions = exception_state().caught;
  from.uncaught_exceptions = exception_state().uncaught;
  exception_state() = {to.caught_exceptions, to.uncaught_exceptions};
  running_ = thread;
  ::swapcontext(&from.context, &to.context);
}

/// Goes on, or interrupts this thread.
void Engine::schedule() {
  if (++operations_ > bounds_.operations) violation("no end after many operations");
  if (preemptions_ == bounds_.preemptions) return;
  std::vector<std::size_t> threads{running_};
  for (std::size_t thread = 0; thread < fibers_.size(); ++thread)
    if (thread != running_ && may_run(*fibers_[thread])) threads.push_back(thread);
  const std::size_t chosen = decide(threads.size());
  if (chosen == 0) return;
  ++preemptions_;
  switch_to(threads[chosen]);
}

/// This thread cannot go on: another one must.
void Engine::block() {
  std::vector<std::size_t> threads;
  bool all_finished = true;
  for (std::size_t thread = 0; thread < fibers_.size(); ++thread) {
    if (may_run(*fibers_[thread])) threads.push_back(thread);
    all_finished = all_finished && fibers_[thread]->finished;
  }
  if (all_finished) ::setcontext(&main_context_);
  if (threads.empty()) violation("all threads that have not ended sleep: a wake-up was lost");
  switch_to(threads[decide(threads.size())]);
}

void Engine::violation(const std::string& text) {
  outcome_.violation = text;
  outcome_.trace = trace();
  if (!in_thread()) throw Violation();
  ::setcontext(&main_context_);
  std::abort();  // not reached
}

// ---- memory ----

void Engine::share(const void* memory, std::size_t bytes, const void* segment) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const auto [found, is_new] =
      segments_.try_emplace(segment, kSegmentBytes * (segments_.size() + 1));
  mappings_.push_back({begin, begin + bytes, found->second});
}

std::optional<Address> Engine::address_of(const void* memory) const {
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  for (const Mapping& mapping : mappings_)
    if (at >= mapping.begin && at < mapping.end) return mapping.address + (at - mapping.begin);
  return std::nullopt;
}

/// Before an access: other threads may run, if they use this location, too.
void Engine::enter(Address address, bool writes) {
  Use& use = uses_[address];
  use.threads |= 1U << running_;
  use.written = use.written || writes;
  if (use.written && std::popcount(use.threads) > 1 && contended_.insert(address).second)
    contended_grew_ = true;
  if (contended_.contains(address)) schedule();
}

std::uint64_t Engine::load(Address address, std::uint64_t real_value, Order order) {
  enter(address, false);
  // After enter(): other threads may have stored. The real value is wanted at the first access only,
  // when no thread has stored yet.
  const std::size_t readable = memory_.readable(running_, address, real_value);
  const auto allowed = static_cast<std::size_t>(bounds_.stale_reads - stale_reads_);
  const std::size_t age = allowed == 0 ? 0 : decide(readable);
  if (age != 0) ++stale_reads_;
  const std::uint64_t value = memory_.load(running_, address, age, order);
  note(age == 0 ? "load" : "load (old)", address, value, order);
  return value;
}

void Engine::store(Address address, std::uint64_t real_value, std::uint64_t value, Order order) {
  enter(address, true);
  memory_.readable(running_, address, real_value);
  memory_.store(running_, address, value, order);
  note("store", address, value, order);
}

std::uint64_t Engine::modify(Address address, std::uint64_t real_value, const Change& change,
                             Order order, Order order_of_failure) {
  enter(address, true);
  memory_.readable(running_, address, real_value);
  const std::uint64_t old = memory_.load(running_, address, 0, Order::relaxed);
  const auto value = change(old);
  if (value)
    memory_.exchange(running_, address, *value, order);
  else
    memory_.load(running_, address, 0, order_of_failure);
  note(value ? "modify" : "compare", address, value.value_or(old), order);
  return old;
}

void Engine::fence(Order order) {
  if (order == Order::seq_cst) schedule();
  memory_.fence(running_, order);
  note("fence", 0, 0, order);
}

void Engine::plain_access(const void* memory, std::size_t bytes, bool is_write) {
  const auto address = address_of(memory);
  if (!address || bytes == 0) return;
  const auto other = is_write ? memory_.write_plain(running_, *address, bytes)
                              : memory_.read_plain(running_, *address, bytes);
  if (!other) return;
  note(is_write ? "plain write" : "plain read", *address, 0, Order::relaxed);
  violation("data race with thread " + fibers_[*other]->name);
}

void Engine::interruption_point() { schedule(); }

// ---- threads that wait ----

/// The kernel compares with the newest value, and nothing comes between that and sleeping.
void Engine::sleep(Address address, std::uint64_t real_value, std::uint32_t expected) {
  enter(address, false);
  memory_.readable(running_, address, real_value);
  note("sleep", address, expected, Order::relaxed);
  if (memory_.newest(address) != expected) return;
  fibers_[running_]->sleeps_on = address;
  block();
}

void Engine::wake(Address address) {
  enter(address, false);
  note("wake", address, 0, Order::relaxed);
  for (const auto& fiber : fibers_)
    if (fiber->sleeps_on == address) fiber->sleeps_on.reset();
}

void Engine::lock(const void* mutex) {
  while (mutexes_[mutex].owner != kNone) {
    fibers_[running_]->waits_for = mutex;
    block();
    fibers_[running_]->waits_for = nullptr;
  }
  mutexes_[mutex].owner = running_;
  memory_.acquire(running_, mutexes_[mutex].released);
}

void Engine::unlock(const void* mutex) { mutexes_[mutex] = {kNone, memory_.release(running_)}; }

// ---- trace ----

void Engine::note(const char* what, Address address, std::uint64_t value, Order order) {
  events_.push_back({running_, what, address, value, order});
}

std::string Engine::trace() const {
  std::string text;
  char line[160];
  for (const Event& event : events_) {
    std::snprintf(line, sizeof line, "  %-10s %-11s %llu+0x%06llx  0x%llx  %s\n",
                  fibers_[event.thread]->name.c_str(), event.what,
                  static_cast<unsigned long long>(event.address / kSegmentBytes),
                  static_cast<unsigned long long>(event.address % kSegmentBytes),
                  static_cast<unsigned long long>(event.value), name_of(event.order));
    text += line;
  }
  return text;
}

}  // namespace tccl::model
