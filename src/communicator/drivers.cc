#include "communicator/drivers.h"

namespace tccl {

void Drivers::submit(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  if (idle_ >= jobs_.size())
    wake_.notify_one();
  else
    threads_.emplace_back([this] { main(); });
}

void Drivers::main() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    --idle_;
    if (jobs_.empty()) return;
    const auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

void Drivers::stop() noexcept {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads) {
    // The last reference to a context may go away in a callback, on one of these very threads.
    thread.get_id() == std::this_thread::get_id() ? thread.detach() : thread.join();
  }
}

}  // namespace tccl
