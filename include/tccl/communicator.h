// Communicator: a group of ranks and the operations they run.
// Implemented by src/communicator/communicator_impl.{h,cc}.
//
//   auto context = tccl::Context::create();                       // once per process
//   auto store = tccl::file_store("/shared/job-17");
//   auto comm = tccl::Communicator::create(context, *store, rank, size, {.name = "world"});
//   comm->run(tccl::allreduce(x, x, n, tccl::DType::float32, tccl::ReduceOp::sum));
//
// Thread safety: every method may be called from any thread. Collectives of one communicator run in
// the order in which they were issued, which must be the same on all ranks. Send and recv are not
// ordered with collectives.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tccl/context.h"
#include "tccl/error.h"
#include "tccl/operation.h"
#include "tccl/store.h"
#include "tccl/work.h"

namespace tccl {

/// Collectives that run back to back as one entry in the communicator's issue order. No operation
/// that was issued concurrently runs between them, and a later collective may depend on the result
/// of an earlier one. The body runs collectives only through `run`: a call on the communicator
/// would wait for the list itself. If the body throws, the group fails; also if `run` throws
/// because an argument is invalid, since the other ranks wait for the rest of the list.
struct OperationList {
  using Run = std::function<void(const Operation&)>;
  std::string name;              // for error messages
  std::uint32_t operations = 0;  // how many collectives the body runs; the same on all ranks
  std::function<void(const Run& run)> body;
};

class TCCL_API Communicator {
 public:
  struct Options {
    std::string name = "world";        // for error messages
    Milliseconds timeout{300'000};     // default timeout of an operation
    std::uint32_t first_sequence = 1;  // sequence number of the first collective; same on all ranks
    std::string serves{};  // for the log: the backend that this group replaces, such as "gloo"
    /// For a new group whose ranks are all in another one: that group, and the rank there of each
    /// rank of the new group. create() then notices at once that a rank has left that group, or
    /// that its process has ended.
    std::weak_ptr<Communicator> parent{};
    std::vector<int> ranks_in_parent{};
  };
  struct CallOptions {
    Milliseconds timeout{0};  // 0: the communicator's
    /// Released when the operation completes; must not own the communicator or its context.
    std::shared_ptr<const void> keepalive{};
    /// Receives the sequence number of the collective, or of the first one of a list, before the
    /// call returns. Not written for send and recv, which have none.
    std::uint32_t* sequence = nullptr;
  };

  /// Collective over all ranks: the rendezvous through `store`, whose keys belong to this group
  /// alone.
  static std::shared_ptr<Communicator> create(std::shared_ptr<Context> context, Store& store,
                                              int rank, int size, Options options);
  /// Instead of create(), for a rank that cannot create a context: create() then fails on the other
  /// ranks with this reason, instead of waiting for the rank until the timeout.
  static void report_failed_start(Store& store, int rank, int size, const Options& options,
                                  const std::string& reason) noexcept;
  virtual ~Communicator();

  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;
  [[nodiscard]] virtual const std::string& name() const noexcept = 0;

  /// Runs the operation to completion, on the calling thread where possible.
  virtual void run(const Operation& operation, const CallOptions& options) = 0;
  void run(const Operation& operation) { run(operation, CallOptions()); }
  /// Runs a collective on the calling thread if no other is queued or running. Otherwise, and for
  /// send and recv, does nothing and returns false.
  virtual bool try_run(const Operation& operation, const CallOptions& options) = 0;
  /// Starts the operation and returns its handle.
  virtual std::shared_ptr<Work> start(const Operation& operation, CallOptions options) = 0;
  std::shared_ptr<Work> start(const Operation& operation) {
    return start(operation, CallOptions());
  }
  /// The same for a list; the timeout bounds the whole list.
  virtual void run(OperationList list, const CallOptions& options) = 0;
  virtual std::shared_ptr<Work> start(OperationList list, CallOptions options) = 0;

  /// Collective: ranks that pass the same color form a new communicator, ordered by (key, rank).
  /// Returns null for a negative color.
  virtual std::shared_ptr<Communicator> split(int color, int key, Options options) = 0;

  /// Collective over the ranks that are not in `excluded`: these form a new communicator, in their
  /// order. Needs no store. Works also after this communicator has failed and ranks have died, and
  /// leaves it as it is; operations in flight continue, unless abort() is called first. All ranks
  /// must exclude the same ranks. If a rank dies, does not call within `options.timeout`, or
  /// excludes other ranks, the call fails on all ranks and can be repeated by all. The names of
  /// ranks in an Error are those of this communicator.
  virtual std::shared_ptr<Communicator> shrink(std::vector<int> excluded, Options options) = 0;

  /// Sequence number of the next collective.
  [[nodiscard]] virtual std::uint32_t next_sequence() const noexcept = 0;
  /// Why the communicator failed, or null if it has not.
  [[nodiscard]] virtual std::exception_ptr error() const noexcept = 0;

  /// Throws if the communicator has failed or a rank has died. For the body of a list that
  /// waits for something other than a collective; `operation` names it in the error message.
  virtual void check_peers(const std::string& operation) const = 0;

  /// Whether close() has been called, here or by the context.
  [[nodiscard]] virtual bool is_closed() const noexcept = 0;

  /// Fails every pending operation, here and on all other ranks, immediately. The error names this
  /// rank and the reason, if that is not empty.
  virtual void abort(const std::string& reason) noexcept = 0;
  /// Waits until no started collective or send is left, or the group has failed or is closed; false
  /// after `timeout`. Operations that others start meanwhile count, too.
  virtual bool wait_until_idle(Milliseconds timeout) const = 0;
  /// Waits for started operations (receives are cancelled), then leaves the group. Idempotent.
  virtual void close() noexcept = 0;
};

}  // namespace tccl
