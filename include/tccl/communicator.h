// A group of ranks that communicate, and the work it does.
//
//   auto context = tccl::Context::create();                       // once per process
//   auto store = tccl::file_store("/shared/job-17");
//   auto comm = tccl::Communicator::create(context, *store, rank, size, {.name = "world"});
//   comm->run(tccl::allreduce(x, x, n, tccl::DType::float32, tccl::ReduceOp::sum));
//
// Thread safety: every method may be called from any thread. Collectives of one communicator are
// run in the order in which they were issued, which must be the same on all ranks; point-to-point
// operations are independent of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tccl/error.h"
#include "tccl/operation.h"
#include "tccl/store.h"

namespace tccl {

using Milliseconds = std::chrono::milliseconds;

/// This process as its peers see it: its shared memory, its liveness, its threads. Shared by all
/// communicators; ranks may also be threads of one process, each with a context of its own.
class TCCL_API Context {
 public:
  struct Options {
    /// Called about every 100 ms while a thread sleeps in run() or wait(); what it throws ends the
    /// wait and the group. Meant for a host language's pending signals.
    std::function<void()> poll_interrupt{};
  };
  static std::shared_ptr<Context> create() { return create(Options()); }
  static std::shared_ptr<Context> create(Options options);
  virtual ~Context();

  /// Memory that the other ranks of this host can reach: collectives on it copy less (see
  /// docs/zero-copy.md). Page-aligned, its contents undefined; may outlive the context. If a
  /// collective on it fails, ranks that are late cannot change it any more, unless they are threads
  /// of this process. A forked child shares it with its parent. Throws Error{system} if there is no
  /// room.
  virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;

  /// The setting CCL_STAGING_BYTES, for whoever brings an accelerator's memory to the host. Ranks
  /// have agreed on it.
  [[nodiscard]] virtual std::size_t staging_bytes() const noexcept = 0;

  /// Says goodbye to all peers and joins all threads. Communicators still open are aborted.
  virtual void close() noexcept = 0;
};

/// The handle of an operation that was started. Keeps what it needs alive until completion.
class TCCL_API Work {
 public:
  virtual ~Work();
  [[nodiscard]] virtual bool done() const noexcept = 0;
  /// Waits for completion and throws the operation's error, if any.
  virtual void wait() = 0;
  /// As wait(), but gives up with Error{timeout} after `timeout`; the operation goes on.
  virtual void wait(Milliseconds timeout) = 0;
  /// The error of a completed operation, or null.
  [[nodiscard]] virtual std::exception_ptr error() const noexcept = 0;
  /// Runs `callback` once the operation is complete: at once if it is already, else on the thread
  /// that completes it, with no lock held, so that it may start or run further operations.
  virtual void on_done(std::function<void()> callback) = 0;
  /// The same for a callback that issues collectives on the same communicator: they take the place
  /// in its order at which this was called, whenever the callback runs, so that it is the same on
  /// all ranks. What was issued later does not begin before the callback has returned; so the
  /// callback may wait() for that, but not for another thread that does. For messages, which have
  /// no order among collectives, it is on_done().
  virtual void on_done_in_order(std::function<void()> callback) = 0;
  /// Withdraws a receive that nothing has matched, or a send that has not left: it then fails with
  /// Error{aborted}, and the group is unharmed. False if it is too late; always for a collective.
  virtual bool cancel() noexcept = 0;
  /// The rank a completed recv came from.
  [[nodiscard]] virtual int source() const noexcept = 0;
};

/// Collectives that run one after the other as one entry in the communicator's order: nothing that
/// was issued meanwhile comes between them, and a later one may depend on what an earlier one
/// brought. The body runs collectives by `run` alone, never by the communicator, which it would
/// wait for. If it throws, the group fails.
struct OperationSequence {
  using Run = std::function<void(const Operation&)>;
  std::string name;              // for messages
  std::uint32_t operations = 0;  // how many the body runs, the same on all ranks
  std::function<void(const Run& run)> body;
};

class TCCL_API Communicator {
 public:
  struct Options {
    std::string name = "world";        // for messages
    Milliseconds timeout{300'000};     // of an operation that names none
    std::uint32_t first_sequence = 1;  // number of the first collective, the same on all ranks
  };
  struct CallOptions {
    Milliseconds timeout{0};  // 0: the communicator's
    /// Released when the operation is complete; must not own the communicator or its context.
    std::shared_ptr<const void> keepalive{};
  };

  /// Collective over all ranks: meets them through `store`, whose keys belong to this group alone.
  static std::shared_ptr<Communicator> create(std::shared_ptr<Context> context, Store& store,
                                              int rank, int size, Options options);
  virtual ~Communicator();

  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;
  [[nodiscard]] virtual const std::string& name() const noexcept = 0;

  /// Runs the operation to its end, on the calling thread where that is possible.
  virtual void run(const Operation& operation, const CallOptions& options) = 0;
  void run(const Operation& operation) { run(operation, CallOptions()); }
  /// Runs a collective on the calling thread if none is under way; otherwise, and for messages,
  /// does nothing and returns false. A timeout of 0 is the communicator's.
  virtual bool try_run(const Operation& operation, Milliseconds timeout) = 0;
  /// Starts it and returns; wait() on the handle.
  virtual std::shared_ptr<Work> start(const Operation& operation, CallOptions options) = 0;
  std::shared_ptr<Work> start(const Operation& operation) {
    return start(operation, CallOptions());
  }
  /// The same for a sequence; `timeout` bounds all of it.
  virtual void run(OperationSequence sequence, const CallOptions& options) = 0;
  virtual std::shared_ptr<Work> start(OperationSequence sequence, CallOptions options) = 0;

  /// Collective: ranks that pass the same color form a new communicator, ordered by (key, rank).
  /// Returns null for a negative color.
  virtual std::shared_ptr<Communicator> split(int color, int key, Options options) = 0;

  /// Number of the next collective, for messages and checks.
  [[nodiscard]] virtual std::uint32_t next_sequence() const noexcept = 0;
  /// Why the communicator is dead, or null while it lives.
  [[nodiscard]] virtual std::exception_ptr error() const noexcept = 0;

  /// Throws if the communicator is dead, or a rank without which `operation` cannot end: for the
  /// body of a sequence that waits for something else meanwhile.
  virtual void check_peers(const std::string& operation) const = 0;

  /// Whether close() has been called, here or by the context.
  [[nodiscard]] virtual bool is_closed() const noexcept = 0;

  /// Every operation that is waiting, here and on all other ranks, fails at once.
  virtual void abort(const std::string& reason) noexcept = 0;
  /// Waits for what was started (receives are cancelled), then leaves the group. Idempotent.
  virtual void close() noexcept = 0;
};

}  // namespace tccl
