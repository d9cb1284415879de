// Counts the steps of a process and injects a fault at step k. For LD_PRELOAD; the library under
// test has no hook for it. Used by steps.py.
//
// A step is
// - a call of one of the libc functions below: sockets, messages, files, mappings, threads;
// - a store to this process's own shared memory, such as a posted step of a collective or a cell of
//   a message. While armed, that memory is write-protected: the handler of SIGSEGV counts, lifts the
//   protection, and sets the trap flag of the CPU, so that after one instruction the handler of
//   SIGTRAP protects the memory again.
//
// Thread safety: functions may be called by any thread; one fault per process at a time.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

namespace {

/// What happens at the step; the numbers are those of steps.py.
enum class Action : std::int32_t { raise_signal, exit_process, limit, kill_process, write_byte };

/// In a file that the process which judges the trial maps, too.
struct Control {
  std::atomic<std::int64_t> steps_left;  // 0: not armed
  std::atomic<std::int64_t> fault_time_ns;
  Action action;
  std::int32_t argument;      // signal, exit code, resource, process, file descriptor
  std::int32_t headers_only;  // stores to region headers alone are steps, not those of data
  std::int32_t pause_us;      // after write_byte: the thread stays in its step meanwhile
};

struct Range {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

// As in src/transport/shm/arena.cc: one page of process state, headers up to 64 MiB, then data.
constexpr std::size_t kHeadersBegin = 4096;
constexpr std::size_t kHeadersEnd = std::size_t{64} << 20;
constexpr greg_t kTrapFlag = 0x100;

Control* control = nullptr;
pid_t armed_process = 0;
std::atomic<int> arena_fd{-1};
Range arena;  // written when the context is created

bool is_armed() {
  return control != nullptr && armed_process == static_cast<pid_t>(::syscall(SYS_getpid)) &&
         control->steps_left.load(std::memory_order_relaxed) > 0;
}

Range watched() {
  if (arena.begin == 0 || control == nullptr) return {};
  return {arena.begin + kHeadersBegin,
          control->headers_only != 0 ? arena.begin + kHeadersEnd : arena.end};
}

void protect(int protection) {
  const Range range = watched();
  if (range.begin != 0) ::syscall(SYS_mprotect, range.begin, range.end - range.begin, protection);
}

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

void set_handler(int signal, const struct sigaction& action) {
  static const auto real =
      next<int (*)(int, const struct sigaction*, struct sigaction*)>("sigaction");
  real(signal, &action, nullptr);
}

void by_default(int signal) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  set_handler(signal, action);
}

void raise_signal(int signal) {
  if (signal == SIGSEGV) by_default(signal);
  ::syscall(SYS_kill, ::syscall(SYS_getpid), signal);
}

/// From now on the process gets no more of the resource.
void limit(__rlimit_resource_t resource) {
  rlimit limits{};
  ::getrlimit(resource, &limits);
  limits.rlim_cur = 0;
  if (resource == RLIMIT_NOFILE) {
    // The lowest free descriptor. Not zero: poll() refuses more descriptors than the limit.
    const long lowest_free = ::syscall(SYS_dup, STDERR_FILENO);
    ::syscall(SYS_close, lowest_free);
    limits.rlim_cur = static_cast<rlim_t>(lowest_free);
  }
  ::setrlimit(resource, &limits);
}

void inject() {
  protect(PROT_READ | PROT_WRITE);
  control->fault_time_ns.store(now_ns());
  const int argument = control->argument;
  switch (control->action) {
    case Action::raise_signal:
      return raise_signal(argument);
    case Action::exit_process:
      ::_exit(argument);
    case Action::limit:
      return limit(static_cast<__rlimit_resource_t>(argument));
    case Action::kill_process:
      ::syscall(SYS_kill, argument, SIGKILL);
      return;
    case Action::write_byte: {
      ::syscall(SYS_write, argument, "x", 1);
      const timespec pause{0, control->pause_us * 1000L};
      ::syscall(SYS_nanosleep, &pause, nullptr);
      return;
    }
  }
}

void count_step() {
  if (!is_armed()) return;
  const int error = errno;
  if (control->steps_left.fetch_sub(1) == 1) inject();
  errno = error;
}

greg_t& flags_of(void* context) {
  return static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL];
}

/// Of a crash that is not the fault.
void print_stack_and_raise(int signal) {
  by_default(signal);
  void* frames[50];
  ::backtrace_symbols_fd(frames, ::backtrace(frames, 50), STDERR_FILENO);
  raise_signal(signal);
}

void on_protected_store(int /*signal*/, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const Range range = watched();
  if (address < range.begin || address >= range.end) return print_stack_and_raise(SIGSEGV);
  count_step();
  protect(PROT_READ | PROT_WRITE);
  if (is_armed()) flags_of(context) |= kTrapFlag;
}

void after_store(int /*signal*/, siginfo_t* /*info*/, void* context) {
  flags_of(context) &= ~kTrapFlag;
  if (is_armed()) protect(PROT_READ);
}

void handle(int signal, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  set_handler(signal, action);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

/// The fault happens `steps` steps from now. The other fields of the control are set already.
void fault_arm(Control* of_trial, std::int64_t steps) {
  control = of_trial;
  armed_process = ::getpid();
  handle(SIGSEGV, on_protected_store);
  handle(SIGTRAP, after_store);
  handle(SIGABRT, [](int signal, siginfo_t*, void*) { print_stack_and_raise(signal); });
  void* frame = nullptr;
  ::backtrace(&frame, 1);  // loads what it needs: there may be no memory later
  control->steps_left.store(steps);
  protect(PROT_READ);
}

/// If the calls had fewer steps: the fault happens now, on the calling thread.
void fault_inject_unless_done() {
  if (control->steps_left.exchange(0) > 0) inject();
}

/// The control is not used any more.
void fault_disarm() {
  control->steps_left.store(0);
  protect(PROT_READ | PROT_WRITE);
  control = nullptr;
}

/// A provider of libfabric handles SIGSEGV: while armed, the handlers are those above.
int sigaction(int signal, const struct sigaction* action, struct sigaction* before) noexcept {
  static const auto real =
      next<int (*)(int, const struct sigaction*, struct sigaction*)>("sigaction");
  const bool is_ours = is_armed() && (signal == SIGSEGV || signal == SIGTRAP);
  return real(signal, is_ours ? nullptr : action, before);
}

sighandler_t signal(int number, sighandler_t handler) noexcept {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  return sigaction(number, &action, &before) == 0 ? before.sa_handler : SIG_ERR;
}

int memfd_create(const char* name, unsigned flags) noexcept {
  static const auto real = next<int (*)(const char*, unsigned)>("memfd_create");
  count_step();
  const int fd = real(name, flags);
  if (std::strcmp(name, "tccl") == 0) arena_fd = fd;
  return fd;
}

void* mmap(void* address, std::size_t bytes, int protection, int flags, int fd,
           off_t offset) noexcept {
  static const auto real = next<decltype(&mmap)>("mmap");
  count_step();
  void* result = real(address, bytes, protection, flags, fd, offset);
  if (result != MAP_FAILED && fd >= 0 && fd == arena_fd && address == nullptr) {
    const auto begin = reinterpret_cast<std::uintptr_t>(result);
    arena = {begin, begin + bytes};
    if (is_armed()) protect(PROT_READ);
  }
  return result;
}

#define STEP(result, name, parameters, arguments, ...)          \
  result name parameters __VA_ARGS__ {                          \
    static const auto real = next<result(*) parameters>(#name); \
    count_step();                                               \
    return real arguments;                                      \
  }

STEP(int, socket, (int domain, int type, int protocol), (domain, type, protocol), noexcept)
STEP(int, bind, (int fd, const sockaddr* to, socklen_t size), (fd, to, size), noexcept)
STEP(int, listen, (int fd, int backlog), (fd, backlog), noexcept)
STEP(int, connect, (int fd, const sockaddr* to, socklen_t size), (fd, to, size))
STEP(int, accept4, (int fd, sockaddr* from, socklen_t* size, int flags), (fd, from, size, flags))
STEP(ssize_t, send, (int fd, const void* data, size_t size, int flags), (fd, data, size, flags))
STEP(ssize_t, sendmsg, (int fd, const msghdr* message, int flags), (fd, message, flags))
STEP(ssize_t, recv, (int fd, void* data, size_t size, int flags), (fd, data, size, flags))
STEP(ssize_t, recvmsg, (int fd, msghdr* message, int flags), (fd, message, flags))
STEP(ssize_t, write, (int fd, const void* data, size_t size), (fd, data, size))
STEP(ssize_t, read, (int fd, void* data, size_t size), (fd, data, size))
STEP(int, close, (int fd), (fd))
STEP(int, shutdown, (int fd, int how), (fd, how), noexcept)
STEP(int, ftruncate, (int fd, off_t size), (fd, size), noexcept)
STEP(int, munmap, (void* address, size_t size), (address, size), noexcept)
STEP(int, pthread_create,
     (pthread_t * thread, const pthread_attr_t* attributes, void* (*main)(void*), void* argument),
     (thread, attributes, main, argument), noexcept)
STEP(int, pthread_join, (pthread_t thread, void** result), (thread, result))

}  // extern "C"
#pragma GCC visibility pop
