// Receives whose accelerator has not come to them yet, although the message has. One thread looks
// after all of them, so that neither a caller nor a thread of the library waits for a device.
// Thread-safe.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace torch_ccl {

class LateReceives {
 public:
  /// That of this process.
  static LateReceives& instance();

  /// Does what it can without waiting; true if nothing is left to be done. Must not throw.
  using Attempt = std::function<bool()>;
  /// It is repeated until it is true.
  void add(Attempt attempt);
  /// Joins the thread, which goes on until all is done. Whoever calls this has seen to it that all
  /// attempts come to an end.
  void close();

 private:
  void work();

  std::mutex mutex_;  // guards what follows
  std::condition_variable added_;
  std::list<Attempt> new_;
  bool closing_ = false;
  std::thread thread_;  // from the first receive on
};

}  // namespace torch_ccl
