// What code compiled with -fsanitize=thread calls for each access to memory, and what the linker
// (--wrap) puts in place of the system calls by which threads wait. In an explored thread they ask
// the Engine; elsewhere they do what the code says.
//
// Compiled without the sanitizer. Of library functions only memcpy() is seen.
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdint>

#include "model/engine.h"

using tccl::model::Engine;
using Order = std::memory_order;

namespace {

template <class T>
T load(const volatile T* memory, int order) {
  const T real = __atomic_load_n(memory, __ATOMIC_SEQ_CST);
  if (Engine* engine = Engine::exploring())
    if (const auto address = engine->address_of(const_cast<const T*>(memory)))
      return static_cast<T>(engine->load(*address, real, static_cast<Order>(order)));
  return real;
}

template <class T>
void store(volatile T* memory, T value, int order) {
  if (Engine* engine = Engine::exploring())
    if (const auto address = engine->address_of(const_cast<T*>(memory)))
      engine->store(*address, __atomic_load_n(memory, __ATOMIC_SEQ_CST), value,
                    static_cast<Order>(order));
  __atomic_store_n(memory, value, __ATOMIC_SEQ_CST);
}

/// `change` gives the new value from the old one. Returns the old one.
template <class T, class Change>
T modify(volatile T* memory, int order, const Change& change) {
  if (Engine* engine = Engine::exploring()) {
    if (const auto address = engine->address_of(const_cast<T*>(memory))) {
      const T real = __atomic_load_n(memory, __ATOMIC_SEQ_CST);
      const auto order_of_both = static_cast<Order>(order);
      const T old = static_cast<T>(engine->modify(
          *address, real, [&](std::uint64_t value) { return change(static_cast<T>(value)); },
          order_of_both, order_of_both));
      __atomic_store_n(memory, change(old), __ATOMIC_SEQ_CST);
      return old;
    }
  }
  T old = __atomic_load_n(memory, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(memory, &old, change(old), false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST)) {
  }
  return old;
}

template <class T>
bool compare_exchange(volatile T* memory, T* expected, T value, int order, int order_of_failure) {
  Engine* engine = Engine::exploring();
  const auto address =
      engine != nullptr ? engine->address_of(const_cast<T*>(memory)) : std::nullopt;
  if (!address)
    return __atomic_compare_exchange_n(memory, expected, value, false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
  const auto change = [&](std::uint64_t old) -> std::optional<std::uint64_t> {
    if (static_cast<T>(old) == *expected) return value;
    return std::nullopt;
  };
  const T real = __atomic_load_n(memory, __ATOMIC_SEQ_CST);
  const T old = static_cast<T>(engine->modify(*address, real, change, static_cast<Order>(order),
                                              static_cast<Order>(order_of_failure)));
  if (old != *expected) {
    *expected = old;
    return false;
  }
  __atomic_store_n(memory, value, __ATOMIC_SEQ_CST);
  return true;
}

long futex(const long* arguments) {
  Engine* engine = Engine::exploring();
  auto* word = reinterpret_cast<std::uint32_t*>(arguments[0]);
  const auto address = engine->address_of(word);
  if (!address) return 0;
  if ((arguments[1] & FUTEX_CMD_MASK) == FUTEX_WAKE)
    engine->wake(*address);
  else
    engine->sleep(*address, *word, static_cast<std::uint32_t>(arguments[2]));
  return 0;
}

}  // namespace

extern "C" {

// NOLINTBEGIN(bugprone-reserved-identifier): the names are the compiler's
void __tsan_init() {}
void __tsan_func_entry(void* /*caller*/) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void** /*object*/, void* /*value*/) {}
void __tsan_vptr_read(void** /*object*/) {}

#define PLAIN(bytes)                                                                             \
  void __tsan_read##bytes(void* memory) { tccl::model::access(memory, bytes, false); }           \
  void __tsan_write##bytes(void* memory) { tccl::model::access(memory, bytes, true); }           \
  void __tsan_unaligned_read##bytes(void* memory) { tccl::model::access(memory, bytes, false); } \
  void __tsan_unaligned_write##bytes(void* memory) { tccl::model::access(memory, bytes, true); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)
void __tsan_read_range(void* memory, std::size_t bytes) {
  tccl::model::access(memory, bytes, false);
}
void __tsan_write_range(void* memory, std::size_t bytes) {
  tccl::model::access(memory, bytes, true);
}

#define MODIFY(bits, name, result)                                                           \
  std::uint##bits##_t __tsan_atomic##bits##_##name(volatile std::uint##bits##_t* memory,     \
                                                   std::uint##bits##_t operand, int order) { \
    return modify(memory, order, [operand]([[maybe_unused]] std::uint##bits##_t old) {       \
      return static_cast<std::uint##bits##_t>(result);                                       \
    });                                                                                      \
  }
#define ATOMIC(bits)                                                                         \
  std::uint##bits##_t __tsan_atomic##bits##_load(const volatile std::uint##bits##_t* memory, \
                                                 int order) {                                \
    return load(memory, order);                                                              \
  }                                                                                          \
  void __tsan_atomic##bits##_store(volatile std::uint##bits##_t* memory,                     \
                                   std::uint##bits##_t value, int order) {                   \
    store(memory, value, order);                                                             \
  }                                                                                          \
  MODIFY(bits, exchange, operand)                                                            \
  MODIFY(bits, fetch_add, old + operand)                                                     \
  MODIFY(bits, fetch_sub, old - operand)                                                     \
  MODIFY(bits, fetch_and, old& operand)                                                      \
  MODIFY(bits, fetch_or, old | operand)                                                      \
  MODIFY(bits, fetch_xor, old ^ operand)                                                     \
  int __tsan_atomic##bits##_compare_exchange_strong(                                         \
      volatile std::uint##bits##_t* memory, std::uint##bits##_t* expected,                   \
      std::uint##bits##_t value, int order, int order_of_failure) {                          \
    return compare_exchange(memory, expected, value, order, order_of_failure);               \
  }                                                                                          \
  int __tsan_atomic##bits##_compare_exchange_weak(                                           \
      volatile std::uint##bits##_t* memory, std::uint##bits##_t* expected,                   \
      std::uint##bits##_t value, int order, int order_of_failure) {                          \
    return compare_exchange(memory, expected, value, order, order_of_failure);               \
  }
ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)

void __tsan_atomic_thread_fence(int order) {
  if (Engine* engine = Engine::exploring()) engine->fence(static_cast<Order>(order));
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int /*order*/) {}

// ---- waiting ----

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_futex && Engine::exploring() != nullptr) return futex(arguments);
  return __real_syscall(number, arguments[0], arguments[1], arguments[2], arguments[3],
                        arguments[4], arguments[5]);
}

/// Each look at the clock takes a millisecond, so nobody spins; a timeout of zero ends at the first
/// sleep, one of an hour never.
std::chrono::steady_clock::time_point __real__ZNSt6chrono3_V212steady_clock3nowEv();
std::chrono::steady_clock::time_point __wrap__ZNSt6chrono3_V212steady_clock3nowEv() {
  if (Engine* engine = Engine::exploring())
    return std::chrono::steady_clock::time_point(std::chrono::milliseconds(engine->next_time()));
  return __real__ZNSt6chrono3_V212steady_clock3nowEv();
}

/// Freed memory is zeroed, not unmapped: an execution then takes half the time.
int __wrap_fallocate(int file, int /*mode*/, off_t offset, off_t bytes) {
  static constexpr char kZeros[1 << 16]{};
  while (bytes > 0) {
    const ssize_t written =
        ::pwrite(file, kZeros,
                 std::min<std::size_t>(sizeof kZeros, static_cast<std::size_t>(bytes)), offset);
    if (written < 0) return -1;
    offset += written;
    bytes -= written;
  }
  return 0;
}

void* __real_memcpy(void* to, const void* from, std::size_t bytes);
void* __wrap_memcpy(void* to, const void* from, std::size_t bytes) {
  tccl::model::access(from, bytes, false);
  tccl::model::access(to, bytes, true);
  return __real_memcpy(to, from, bytes);
}

int __real_pthread_mutex_lock(pthread_mutex_t* mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  if (Engine* engine = Engine::exploring()) return engine->lock(mutex), 0;
  return __real_pthread_mutex_lock(mutex);
}
int __real_pthread_mutex_unlock(pthread_mutex_t* mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t* mutex) {
  if (Engine* engine = Engine::exploring()) return engine->unlock(mutex), 0;
  return __real_pthread_mutex_unlock(mutex);
}
// NOLINTEND(bugprone-reserved-identifier)

}  // extern "C"
