// Shrinking a communicator: a new group of the ranks that are not excluded, without a store and
// without the excluded ranks, also after the group has failed. See shrink_attempt.h.
// Thread safety: one call for a group at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "communicator/group_builder.h"
#include "communicator/shrink_message.h"
#include "tccl/communicator.h"

namespace tccl {

/// Of all attempts to shrink one group.
struct ShrinkState {
  std::uint32_t attempts = 0;
  std::vector<ShrinkMessage> early_messages;  // of attempts that this rank has not begun
};

/// Collective over the ranks of `parent` that are not excluded; `options` are those of the new group.
/// Throws the same error on all of them, but for invalid arguments. `keep_open` returns a lock with
/// which the group cannot be closed, or throws if it is closed; it is held for short times only.
GroupParts shrink_group(ContextImpl& context, const GroupParts& parent, ShrinkState& state,
                        std::vector<int> excluded, const Communicator::Options& options,
                        const std::function<std::unique_lock<std::mutex>()>& keep_open);

}  // namespace tccl
