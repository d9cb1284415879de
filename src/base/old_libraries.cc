// Lets libtccl.so and the extension, compiled by a new g++ with a new glibc, load on a system with
// glibc 2.28 and the libstdc++ of GCC 8: the oldest that PyTorch's own wheels support.
//
// The headers of a new g++ and glibc refer to functions and variables that the shared libraries of
// such a system do not have. They are defined here, in terms of what every libstdc++.so.6 and
// libc.so.6 since then exports. Red Hat's compilers for old systems do the same with the archive
// libstdc++_nonshared.a. (Functions that only got a new version: cmake/old_glibc/CMakeLists.txt.)
//
// All definitions are hidden: each library has its own, and no other library of the process sees
// them. They are correct with newer libraries and compilers too, so every build for x86-64 by g++
// has them (TCCL_OLD_LIBRARIES in CMakeLists.txt), and the tests test what is shipped.
// tests/package/test_symbols.py reports a symbol that is too new and is missing here.
//
// Thread safety: as the functions replaced.
#include "base/old_libraries.h"

#include <dlfcn.h>

#include <new>

#define TCCL_HIDDEN __attribute__((visibility("hidden")))

// ---- glibc. asm("name") is the name that the linker sees.

// Since glibc 2.32. std::shared_ptr counts without atomic instructions while it is not 0. 0 is
// always correct, and the library has threads anyway.
extern "C" {
TCCL_HIDDEN extern char libc_single_threaded asm("__libc_single_threaded");
char libc_single_threaded = 0;
}

// Since glibc 2.33; before, libc_nonshared.a had it. Used by libsodium.
extern "C" int fxstat(int layout, int fd, struct stat* status) noexcept asm("__fxstat");
extern "C" TCCL_HIDDEN int fstat(int fd, struct stat* status) noexcept {
  constexpr int kLayoutOfX8664 = 1;  // of struct stat
  return fxstat(kLayoutOfX8664, fd, status);
}

// Since glibc 2.30. std::condition_variable calls it for deadlines on the steady clock.
extern "C" TCCL_HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                                  clockid_t clock, const timespec* deadline) {
  using Function = decltype(&tccl::wait_on_wall_clock);
  static const auto of_glibc =
      reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  const Function wait = of_glibc != nullptr ? of_glibc : &tccl::wait_on_wall_clock;
  return wait(condition, mutex, clock, deadline);
}

namespace tccl {

timespec moved_to_clock(const timespec& deadline, const timespec& now, const timespec& other_now) {
  constexpr long kSecond = 1'000'000'000;
  const long nanoseconds = other_now.tv_nsec + deadline.tv_nsec - now.tv_nsec;
  const long carry = nanoseconds < 0 ? -1 : nanoseconds / kSecond;
  return {other_now.tv_sec + deadline.tv_sec - now.tv_sec + carry, nanoseconds - carry * kSecond};
}

int wait_on_wall_clock(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                       const timespec* deadline) {
  timespec now{}, wall_now{};
  ::clock_gettime(clock, &now);
  ::clock_gettime(CLOCK_REALTIME, &wall_now);
  const timespec wall_deadline = moved_to_clock(*deadline, now, wall_now);
  return ::pthread_cond_timedwait(condition, mutex, &wall_deadline);
}

}  // namespace tccl

// ---- libstdc++: each function here has the mangled name of a member or function of namespace std.

namespace {

/// A function of libstdc++.so.6 in the version that old systems have, too.
/// Looked up at run time: the linker (GNU ld 2.40) loses references to a version (`.symver`) if
/// another library, such as libtorch_cpu.so of torch 2.15, exports the same name without one.
template <class Function>
Function* of_libstdcxx(const char* name, const char* version) {
  static void* const library = ::dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
  return reinterpret_cast<Function*>(::dlvsym(library, name, version));
}

}  // namespace

// void std::__throw_bad_array_new_length(), since GCC 11: std::allocator calls it.
extern "C" {
[[noreturn]] TCCL_HIDDEN void throw_bad_array_new_length() asm(
    "_ZSt28__throw_bad_array_new_lengthv");
void throw_bad_array_new_length() { throw std::bad_array_new_length(); }
}

// void std::exception_ptr::_M_addref() and _M_release(), exported since GCC 11, where the copy
// constructor and destructor became inline functions that call them. Before, these two were
// exported, and they still are. An exception_ptr is one pointer.
extern "C" {
TCCL_HIDDEN void exception_ptr_addref(void** self) asm(
    "_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void exception_ptr_addref(void** self) {
  static const auto copy_constructor = of_libstdcxx<void(void**, void* const*)>(
      "_ZNSt15__exception_ptr13exception_ptrC1ERKS0_", "CXXABI_1.3.3");
  void* copy = nullptr;  // not destroyed: that is the added reference
  copy_constructor(&copy, self);
}

TCCL_HIDDEN void exception_ptr_release(void** self) asm(
    "_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void exception_ptr_release(void** self) {
  static const auto destructor =
      of_libstdcxx<void(void**)>("_ZNSt15__exception_ptr13exception_ptrD1Ev", "CXXABI_1.3.3");
  void* last = *self;
  *self = nullptr;
  destructor(&last);
}
}

// void std::condition_variable::wait(std::unique_lock<std::mutex>&): GCC 12 gave it a new version,
// because it became noexcept. The old one calls pthread_cond_wait() too.
extern "C" {
TCCL_HIDDEN void condition_variable_wait(void* self, void* lock) asm(
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE");
void condition_variable_wait(void* self, void* lock) {
  static const auto old_wait = of_libstdcxx<void(void*, void*)>(
      "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE", "GLIBCXX_3.4.11");
  old_wait(self, lock);
}
}
