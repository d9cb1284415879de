// A small operation does not allocate, lock, or make a system call, whether it is synchronous or
// started and then waited for.
//
// This program replaces operator new, pthread_mutex_lock, syscall and sched_yield by versions that
// count and then call the real ones. Under a sanitizer, which replaces them as well, it counts
// allocations only.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdlib>
#include <new>

#include "control_node.h"
#include "tccl/tccl.h"
#include "thread_ranks.h"

namespace {

struct Counts {
  long allocations = 0;
  long locks = 0;
  long system_calls = 0;
};
thread_local Counts counts;
thread_local bool next_allocation_fails = false;
thread_local bool all_allocations_fail = false;

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // g++ 12 inlines only one of the pair
#endif
void* operator new(std::size_t bytes) {
  ++counts.allocations;
  const bool fails = std::exchange(next_allocation_fails, false) || all_allocations_fail;
  void* memory = fails ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  ++counts.allocations;
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static auto* const lock = real<int(pthread_mutex_t*)>("pthread_mutex_lock");
  ++counts.locks;
  return lock(mutex);
}

int sched_yield() noexcept {
  static auto* const yield = real<int()>("sched_yield");
  ++counts.system_calls;
  return yield();
}

long syscall(long number, ...) noexcept {
  static auto* const call = real<long(long, ...)>("syscall");
  ++counts.system_calls;
  va_list list;
  va_start(list, number);
  std::array<long, 6> arguments{};
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  return call(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
              arguments[5]);
}

}  // extern "C"
#endif

namespace tccl {
namespace {

constexpr int kRepetitions = 300;

/// The minimum of each count over many repetitions, on each of two ranks. The minimum, because a
/// rank that waits for the other sometimes yields or sleeps.
std::array<Counts, 2> minimum_counts(Operation (&make)(std::array<float, 64>& in,
                                                       std::array<float, 64>& out),
                                     void (&call)(const Comm&, const Operation&)) {
  std::array<Counts, 2> minimum;
  run_threads(2, [&](int rank, const Comm& comm) {
    std::array<float, 64> in{};
    std::array<float, 64> out{};
    const Operation operation = make(in, out);
    comm->run(operation);
    Counts& own = minimum[static_cast<std::size_t>(rank)];
    own = {1000, 1000, 1000};
    for (int i = 0; i < kRepetitions; ++i) {
      counts = {};
      call(comm, operation);
      own.allocations = std::min(own.allocations, counts.allocations);
      own.locks = std::min(own.locks, counts.locks);
      own.system_calls = std::min(own.system_calls, counts.system_calls);
    }
  });
  return minimum;
}

using Buffer = std::array<float, 64>;
Operation make_barrier(Buffer&, Buffer&) { return barrier(); }
Operation make_allreduce(Buffer& in, Buffer&) {
  return allreduce(in.data(), in.data(), 2, DType::float32, {ReduceOp::sum});
}
Operation make_large_allreduce(Buffer& in, Buffer&) {
  return allreduce(in.data(), in.data(), 64, DType::float32, {ReduceOp::sum});
}
Operation make_broadcast(Buffer& in, Buffer&) { return broadcast(in.data(), 2, DType::float32, 0); }
Operation make_allgather(Buffer& in, Buffer& out) {
  return allgather(in.data(), out.data(), 2, DType::float32);
}
Operation make_alltoall(Buffer& in, Buffer& out) {
  return alltoall(in.data(), out.data(), 2, DType::float32);
}
Operation make_reduce_scatter(Buffer& in, Buffer& out) {
  return reduce_scatter(in.data(), out.data(), 2, DType::float32, {ReduceOp::sum});
}

void run(const Comm& comm, const Operation& operation) { comm->run(operation); }
void start_and_wait(const Comm& comm, const Operation& operation) {
  comm->start(operation)->wait();
}

TEST(FastPath, NoAllocationNoLockNoSystemCall) {
  struct {
    const char* name;
    Operation (&make)(Buffer&, Buffer&);
    void (&call)(const Comm&, const Operation&);
  } const cases[] = {
      {"barrier", make_barrier, run},
      {"allreduce", make_allreduce, run},
      {"allreduce of 256 bytes", make_large_allreduce, run},
      {"broadcast", make_broadcast, run},
      {"allgather", make_allgather, run},
      {"alltoall", make_alltoall, run},
      {"reduce_scatter", make_reduce_scatter, run},
      {"asynchronous barrier", make_barrier, start_and_wait},
      {"asynchronous allreduce", make_allreduce, start_and_wait},
      {"asynchronous allreduce of 256 bytes", make_large_allreduce, start_and_wait},
      {"asynchronous broadcast", make_broadcast, start_and_wait},
      {"asynchronous allgather", make_allgather, start_and_wait},
      {"asynchronous reduce_scatter", make_reduce_scatter, start_and_wait},
  };
  for (const auto& c : cases)
    for (const Counts& minimum : minimum_counts(c.make, c.call)) {
      EXPECT_EQ(minimum.allocations, 0) << c.name;
      EXPECT_EQ(minimum.locks, 0) << c.name;
      EXPECT_EQ(minimum.system_calls, 0) << c.name;
    }
}

/// The other operations allocate nothing here.
TEST(OutOfMemory, InsideACollectiveFailsTheGroupAsAFailureOfTheSystem) {
  run_threads(2, [](int rank, const Comm& comm) {
    Buffer in{};
    Buffer out{};
    const ConstBlock inputs[] = {{&in[0], 1}, {&in[1], 1}};
    const Block outputs[] = {{&out[0], 1}, {&out[1], 1}};
    const Operation operation = alltoallv(inputs, outputs, DType::float32);
    next_allocation_fails = rank == 1;
    try {
      comm->run(operation);  // rank 0 may complete it before rank 1 fails
      EXPECT_EQ(rank, 0);
      comm->run(operation);
      ADD_FAILURE() << "rank " << rank << " did not fail";
    } catch (const Error& error) {
      EXPECT_EQ(rank, 0);
      EXPECT_EQ(error.code(), Errc::system);
      EXPECT_EQ(error.ranks(), std::vector{1});
      EXPECT_NE(std::string(error.what()).find("rank 1 failed in alltoallv"), std::string::npos)
          << error.what();
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(rank, 1);
    }
  });
}

/// The rank that has no memory for the reason either must not end by std::terminate().
TEST(OutOfMemory, AlsoForTheErrorFailsTheGroup) {
  run_threads(2, [](int rank, const Comm& comm) {
    Buffer in{};
    Buffer out{};
    const ConstBlock inputs[] = {{&in[0], 1}, {&in[1], 1}};
    const Block outputs[] = {{&out[0], 1}, {&out[1], 1}};
    const Operation operation = alltoallv(inputs, outputs, DType::float32);
    std::exception_ptr without_memory;
    try {
      all_allocations_fail = rank == 1;
      for (;;) comm->run(operation);  // rank 0 may complete the first one
    } catch (const Error& error) {
      EXPECT_EQ(rank, 0);
      EXPECT_EQ(error.code(), Errc::system);
      EXPECT_EQ(error.ranks(), std::vector{1});
      const std::string reason = "rank 1 ran out of memory in a collective of group threads";
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    } catch (const std::bad_alloc&) {
      without_memory = comm->error();
      all_allocations_fail = false;
      EXPECT_EQ(rank, 1);
      EXPECT_THROW(std::rethrow_exception(without_memory), std::bad_alloc);
    }
    EXPECT_THROW(std::rethrow_exception(comm->error()), Error);
  });
}

/// A group's failure is then sent later.
TEST(OutOfMemory, ANoticeThatCannotBeQueuedIsNotTakenForSent) {
  Node a("a");
  Node b("b");
  const auto peer = a.add(b);
  for (const Notice& notice : {notice_of("without a connection"), notice_of("with a connection")}) {
    all_allocations_fail = true;
    const bool queued = a.control.send_notice(peer, notice);
    all_allocations_fail = false;
    EXPECT_FALSE(queued);
    EXPECT_TRUE(a.control.send_notice(peer, notice));
    EXPECT_TRUE(b.receives(notice.text));
  }
}

/// CommunicatorImpl::close() does it, which must not fail.
TEST(OutOfMemory, ASecretIsRetired) {
  control::PeerTable table(/*max_retired=*/0);
  const std::string secret = "the secret of a closed group";
  table.add_secret(secret);
  all_allocations_fail = true;
  table.retire_secret(secret);
  all_allocations_fail = false;
  EXPECT_EQ(table.find_secret(control::key_id(secret)), nullptr);
}

TEST(FastPath, CountersWork) {
  counts = {};
  ::operator delete(::operator new(1));
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  ::pthread_mutex_lock(&mutex);
  ::pthread_mutex_unlock(&mutex);
  ::sched_yield();
  EXPECT_EQ(counts.allocations, 1);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  EXPECT_EQ(counts.locks, 1);
  EXPECT_EQ(counts.system_calls, 1);
#endif
}

}  // namespace
}  // namespace tccl
