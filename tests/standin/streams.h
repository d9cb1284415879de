// The streams of the stand-in device: in-order queues of jobs, each with a thread of its own, which
// really run behind the host; and the switches by which tests slow them down or take waits away.
// Safe from any thread.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <mutex>

namespace standin {

using Clock = std::chrono::steady_clock;

/// A place in a stream; ready, with the time, once the stream has come there.
using Marker = std::shared_future<Clock::time_point>;

struct Switches {
  std::atomic<int64_t> delay_us;                 ///< how long each copy is under way
  std::atomic<bool> ignore_stream_waits{false};  ///< streams do not wait for events
  std::atomic<bool> ignore_host_waits{false};    ///< to the host every event and stream is done
  std::atomic<bool> refuse_pinned{false};        ///< no host memory can be pinned
  std::atomic<int64_t> torn_copies{0};           ///< copies whose source changed under way
  std::atomic<int64_t> copies_under_way{0};
  std::atomic<int64_t> simultaneous_copies{0};  ///< begun while another was under way
};
Switches& switches();

/// Runs its jobs one after the other on a thread that the first job starts.
class Queue {
 public:
  using Job = std::function<void()>;

  void push(Job job);
  /// Behind all that was pushed before.
  Marker record();
  /// What is pushed later runs once `marker` is ready.
  void wait_for(Marker marker);
  bool idle();
  void synchronize();

 private:
  void work() noexcept;

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Job> jobs_;  ///< the first one is running
  bool started_ = false;
};

void wait_on_host(const Marker& marker);

// ---- devices and streams of the calling thread

c10::DeviceIndex device_count() noexcept;
c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex index);
/// Whether anything ran or was allocated there.
bool is_in_use(c10::DeviceIndex index) noexcept;
void synchronize_device(c10::DeviceIndex index);

/// An index of -1 stands for the current device.
c10::Stream current_stream(c10::DeviceIndex index);
c10::Stream default_stream(c10::DeviceIndex index);
c10::Stream stream_from_pool(c10::DeviceIndex index);
/// Returns the stream that was current on the device of `stream`.
c10::Stream exchange_stream(const c10::Stream& stream);

Queue& queue_of(const c10::Stream& stream);
Queue& current_queue(c10::DeviceIndex index);

// ---- fork

/// Threads do not come along: a process forked after the first job has queues that nobody empties.
bool forked_after_use() noexcept;
void check_not_forked_after_use();

}  // namespace standin
