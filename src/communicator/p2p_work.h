// P2pWork: a started send or recv.
// Thread safety: the methods of Work: any thread; the other public members: the P2p engine's mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "communicator/work_state.h"
#include "tccl/operation.h"

namespace tccl {

class P2p;

class P2pWork final : public WorkState {
 public:
  P2pWork(std::shared_ptr<P2p> engine, const Operation& operation,
          Communicator::CallOptions options, std::uint64_t sequence);

  /// "send #3 (8 bytes to rank 1, tag 7) of group tp"
  [[nodiscard]] std::string describe(const std::string& group) const;
  using WorkState::options;
  using WorkState::set_source;

  const Operation operation;
  const std::uint64_t sequence;  // of sends and receives of this rank, for error messages
  const Deadline deadline;
  std::uint64_t message_id = 0;      // of a send by rts
  std::uint64_t moved_bytes = 0;     // of a message by rts
  std::exception_ptr pending_error;  // once finished: becomes the error of the work
  bool is_cancelled = false;         // its error does not fail the group

 private:
  void progress_until_done(Deadline latest) override;
  [[nodiscard]] std::string description() const override;
  bool cancel() noexcept override;
  void on_wait_timeout(const Error& error) noexcept override;

  std::shared_ptr<P2p> engine_;
};

using P2pWorkPtr = std::shared_ptr<P2pWork>;

}  // namespace tccl
