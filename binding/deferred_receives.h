// Receives of an accelerator's tensors whose message has arrived before the accelerator's stream
// has reached the receive. One thread polls all of them, so that neither a caller nor a thread of
// the library waits for a device.
// Thread safety: every function may be called from any thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace torch_ccl {

class DeferredReceives {
 public:
  /// The one of this process.
  static DeferredReceives& instance();

  /// Does what is possible without waiting; returns true when the receive is complete. Must not
  /// throw.
  using Attempt = std::function<bool()>;
  /// Repeats `attempt` until it returns true: on the calling thread if no other can be started.
  void add(Attempt attempt);
  /// Joins the thread, which first completes all receives. Call it after all groups are closed:
  /// every attempt then ends, with an error if need be.
  void close();

 private:
  bool has_thread();
  void poll_until_closed();

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::list<Attempt> added_;
  bool is_closing_ = false;
  std::thread thread_;  // started by the first add()
};

}  // namespace torch_ccl
