// Context: what a process owns once and all its communicators share.
// Implemented by src/communicator/context_impl.{h,cc}.
//
//   auto context = tccl::Context::create();
//   std::shared_ptr<void> buffer = context->allocate(1 << 20);   // shared by the host's ranks
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

#include "tccl/export.h"

namespace tccl {

/// The shared memory, the heartbeat and the threads of this process. Ranks may also be threads of
/// one process; then each rank has a context of its own.
class TCCL_API Context {
 public:
  struct Options {
    /// Called about every 100 ms while a thread sleeps in run() or wait(). An exception from it
    /// ends the wait and fails the group. Meant for pending signals of a host language.
    std::function<void()> check_interrupt{};
  };
  static std::shared_ptr<Context> create() { return create(Options()); }
  static std::shared_ptr<Context> create(Options options);
  virtual ~Context();

  /// Memory that the other ranks of this host have mapped: collectives on it copy less (see
  /// docs/zero-copy.md). Page-aligned, contents undefined; may outlive the context. If a collective
  /// on it fails, late ranks cannot change it any more, unless they are threads of this process. A
  /// forked child shares it with its parent. Throws Error{system} if shared memory is exhausted.
  virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;

  /// The setting CCL_STAGING_BYTES, for code that stages accelerator memory through the host. The
  /// same on all ranks.
  [[nodiscard]] virtual std::size_t staging_bytes() const noexcept = 0;

  /// Announces the departure of this process to all peers and joins all threads. Communicators that
  /// are still open are closed; those with operations in flight after `wait_for_operations` are
  /// aborted first.
  virtual void close(std::chrono::milliseconds wait_for_operations) noexcept = 0;
  void close() noexcept { close(std::chrono::milliseconds(0)); }
};

}  // namespace tccl
