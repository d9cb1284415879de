// Work: the handle of an operation that was started with Communicator::start().
// Implemented by src/communicator/work_state.{h,cc} (state and waiting), operation_queue.{h,cc}
// (collectives) and p2p_work.{h,cc} (messages).
//
//   auto work = comm->start(tccl::allreduce(x, x, n, tccl::DType::float32, tccl::ReduceOp::sum));
//   compute();
//   work->wait();
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <chrono>
#include <exception>
#include <functional>

#include "tccl/export.h"

namespace tccl {

using Milliseconds = std::chrono::milliseconds;

/// Keeps what the operation needs alive until completion.
class TCCL_API Work {
 public:
  virtual ~Work();
  [[nodiscard]] virtual bool done() const noexcept = 0;
  /// As done(), but first completes the operation on this thread if that needs no waiting. A program
  /// that polls calls this: nobody else may complete a small operation for about a millisecond.
  virtual bool test() noexcept { return done(); }
  /// Whether start() has only posted the operation, which is small: no thread runs it. It completes in
  /// wait(), in test(), or in the next synchronous call; if none of these comes within about a
  /// millisecond, or on_done() is called, on a thread of the library.
  [[nodiscard]] virtual bool is_posted() const noexcept { return false; }
  /// Waits for completion and throws the operation's error, if any.
  virtual void wait() = 0;
  /// As wait(), but throws Error{timeout} after `timeout`. The operation continues, except that a
  /// receive that no message has matched is cancelled: the message goes to the next receive.
  virtual void wait(Milliseconds timeout) = 0;
  /// The error of a completed operation, or null.
  [[nodiscard]] virtual std::exception_ptr error() const noexcept = 0;
  /// Runs `callback` on completion: immediately if the operation is complete, otherwise on a
  /// thread of the library or on a thread in wait(). No lock is held, so the callback may start or
  /// run operations.
  virtual void on_done(std::function<void()> callback) = 0;
  /// For a callback that issues collectives on the same communicator. Those collectives take the
  /// position in the issue order at which on_done_in_order() was called, so the order is the same
  /// on all ranks, whenever the callback runs. Operations issued after on_done_in_order() do not
  /// start before the callback has returned; the callback itself may wait() for them, but must not
  /// wait for another thread that does. For send and recv, which are not ordered with collectives,
  /// this is on_done().
  virtual void on_done_in_order(std::function<void()> callback) = 0;
  /// Cancels a receive that no message has matched, or a send that has not left. The work then
  /// fails with Error{aborted}; the group stays usable. True if the work is cancelled, also by an
  /// earlier call; false if it is too late, and always for a collective.
  virtual bool cancel() noexcept = 0;
  /// The rank that a completed recv received from.
  [[nodiscard]] virtual int source() const noexcept = 0;
};

}  // namespace tccl
