#include "streams.h"

#include <Python.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

namespace standin {
namespace {

constexpr int kMaxDevices = 16;
constexpr int kPoolStreams = 32;
constexpr int kStreams = 1 + kPoolStreams;  // number 0 is the default stream

struct DeviceState {
  std::array<Queue, kStreams> queues;
  std::atomic<unsigned> handed_out{0};
  std::atomic<bool> in_use{false};
};

// Never destroyed: its threads run until the process ends.
DeviceState& state_of(c10::DeviceIndex index) {
  static auto& states = *new std::array<DeviceState, kMaxDevices>;
  return states.at(index);
}

thread_local c10::DeviceIndex thread_device = 0;
thread_local std::array<c10::StreamId, kMaxDevices> thread_streams{};

std::atomic<bool> in_forked_child{false};

void mark_forked_children() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr,
                   [] { in_forked_child.store(true, std::memory_order_relaxed); });
  });
}

double number_from_environment(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::stod(text);
}

c10::DeviceIndex resolve(c10::DeviceIndex index) {
  if (index == -1) return thread_device;
  TORCH_CHECK(index >= 0 && index < device_count(), "standin: there is no device ", int{index},
              " among ", int{device_count()});
  return index;
}

c10::Stream stream(c10::DeviceIndex index, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kPrivateUse1, index), id);
}

}  // namespace

Switches& switches() {
  static Switches all{
      .delay_us = static_cast<int64_t>(1000 * number_from_environment("STANDIN_DELAY_MS", 2))};
  return all;
}

// ---- queues

void Queue::push(Job job) {
  check_not_forked_after_use();
  const std::lock_guard lock(mutex_);
  if (!std::exchange(started_, true)) {
    mark_forked_children();
    std::thread([this] { work(); }).detach();
  }
  jobs_.push_back(std::move(job));
  arrived_.notify_one();
}

void Queue::work() noexcept {
  std::unique_lock lock(mutex_);
  while (true) {
    arrived_.wait(lock, [this] { return !jobs_.empty(); });
    Job& running = jobs_.front();  // stays in place when others are pushed
    lock.unlock();
    running();
    lock.lock();
    {
      const Job done = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();  // what the job held on to goes now, and its end may push to any queue
    }
    lock.lock();
  }
}

Marker Queue::record() {
  auto reached = std::make_shared<std::promise<Clock::time_point>>();
  Marker marker = reached->get_future().share();
  if (idle()) {
    reached->set_value(Clock::now());
  } else {
    push([reached = std::move(reached)] { reached->set_value(Clock::now()); });
  }
  return marker;
}

void Queue::wait_for(Marker marker) {
  push([marker = std::move(marker)] { marker.wait(); });
}

bool Queue::idle() {
  check_not_forked_after_use();
  const std::lock_guard lock(mutex_);
  return jobs_.empty();
}

void Queue::synchronize() { wait_on_host(record()); }

void wait_on_host(const Marker& marker) {
  // The jobs ahead may need the GIL, to let go of a tensor that Python knows.
  const bool has_gil = Py_IsInitialized() && PyGILState_Check();
  PyThreadState* thread = has_gil ? PyEval_SaveThread() : nullptr;
  marker.wait();
  if (thread != nullptr) PyEval_RestoreThread(thread);
}

// ---- devices and streams of the calling thread

c10::DeviceIndex device_count() noexcept {
  static const auto count = static_cast<c10::DeviceIndex>(
      std::clamp(number_from_environment("STANDIN_DEVICES", 4), 0.0, double{kMaxDevices}));
  return count;
}

c10::DeviceIndex current_device() noexcept { return thread_device; }

void set_current_device(c10::DeviceIndex index) { thread_device = resolve(index); }

bool is_in_use(c10::DeviceIndex index) noexcept {
  return !forked_after_use() && state_of(index).in_use.load(std::memory_order_relaxed);
}

void synchronize_device(c10::DeviceIndex index) {
  for (Queue& queue : state_of(resolve(index)).queues) queue.synchronize();
}

c10::Stream current_stream(c10::DeviceIndex index) {
  const c10::DeviceIndex device = resolve(index);
  return stream(device, thread_streams.at(device));
}

c10::Stream default_stream(c10::DeviceIndex index) { return stream(resolve(index), 0); }

c10::Stream stream_from_pool(c10::DeviceIndex index) {
  const c10::DeviceIndex device = resolve(index);
  const unsigned turn = state_of(device).handed_out.fetch_add(1, std::memory_order_relaxed);
  return stream(device, 1 + turn % kPoolStreams);
}

c10::Stream exchange_stream(const c10::Stream& stream) {
  const c10::Stream previous = current_stream(stream.device_index());
  thread_streams.at(stream.device_index()) = stream.id();
  return previous;
}

Queue& queue_of(const c10::Stream& stream) {
  DeviceState& state = state_of(stream.device_index());
  state.in_use.store(true, std::memory_order_relaxed);
  return state.queues.at(stream.id());
}

Queue& current_queue(c10::DeviceIndex index) { return queue_of(current_stream(index)); }

// ---- fork

bool forked_after_use() noexcept { return in_forked_child.load(std::memory_order_relaxed); }

void check_not_forked_after_use() {
  TORCH_CHECK(!forked_after_use(),
              "standin: this process was forked after its parent had used the device, and the "
              "device's streams did not come along. Fork before the first use, or start processes "
              "by 'spawn' or 'forkserver'.");
}

}  // namespace standin
