#include "communicator/p2p_work.h"

#include "base/format.h"
#include "communicator/p2p.h"

namespace tccl {

P2pWork::P2pWork(std::shared_ptr<P2p> engine, const Operation& op,
                 Communicator::CallOptions call_options, std::uint64_t work_sequence)
    : WorkState(std::move(call_options)),
      operation(op),
      sequence(work_sequence),
      deadline(deadline_after(options().timeout)),
      engine_(std::move(engine)) {}

void P2pWork::progress_until_done(Deadline latest) { engine_->wait_for(*this, latest); }

bool P2pWork::cancel() noexcept {
  if (is_in_forked_child()) return false;
  return engine_->cancel(*this, Error(Errc::aborted, description() + " was cancelled"));
}

void P2pWork::on_wait_timeout(const Error& error) noexcept {
  if (operation.op == Op::recv) engine_->cancel(*this, error);
}

std::string P2pWork::description() const { return describe(engine_->group_name()); }

std::string P2pWork::describe(const std::string& group) const {
  const std::string peer =
      operation.peer() == kAnySource ? "any rank" : formatted("rank {}", operation.peer());
  return formatted("{} #{} ({} bytes {} {}, tag {}) of group {}", name_of(operation.op), sequence,
                   operation.count, operation.op == Op::send ? "to" : "from", peer, operation.tag,
                   group);
}

}  // namespace tccl
