#include "base/thread_pool.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/start_thread.h"

namespace tccl {

struct ThreadPool::Pool {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> tasks;
  std::size_t idle = 0;
  bool warned = false;
  bool stopping = false;
  std::vector<std::thread> threads;

  static void start_thread(const std::shared_ptr<Pool>& pool) {
    pool->threads.push_back(
        tccl::start_thread("a thread of the pool", [pool] { pool->run_thread(); }));
  }

  void run_thread() {
    std::unique_lock lock(mutex);
    for (;;) {
      ++idle;
      wake.wait(lock, [this] { return stopping || !tasks.empty(); });
      --idle;
      if (tasks.empty()) return;
      {
        const auto task = std::move(tasks.front());
        tasks.pop_front();
        lock.unlock();
        task();
      }
      lock.lock();
    }
  }
};

ThreadPool::ThreadPool() : pool_(std::make_shared<Pool>()) {
  const std::lock_guard lock(pool_->mutex);
  Pool::start_thread(pool_);
}

void ThreadPool::submit(std::function<void()> task) {
  const std::lock_guard lock(pool_->mutex);
  pool_->tasks.push_back(std::move(task));
  if (pool_->idle >= pool_->tasks.size()) return pool_->wake.notify_one();
  try {
    Pool::start_thread(pool_);
  } catch (const Error& error) {
    if (!std::exchange(pool_->warned, true)) log_warning(error.what());
  }
}

void ThreadPool::stop() noexcept {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(pool_->mutex);
    pool_->stopping = true;
    threads.swap(pool_->threads);
  }
  pool_->wake.notify_all();
  for (std::thread& thread : threads) {
    // A callback on one of these threads may release the last reference to the context.
    thread.get_id() == std::this_thread::get_id() ? thread.detach() : thread.join();
  }
}

}  // namespace tccl
