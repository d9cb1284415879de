// Splitting a communicator into groups by color. The ranks know each other already, so two
// allgathers on the parent, one entry of its operation queue, replace the rendezvous:
//   1. each rank's color, key and a proposed group_uid;
//   2. the offset of each rank's new region, and its group tag in network messages.
// Thread safety: one split of a parent at a time, as for any collective.
#pragma once

#include <optional>

#include "communicator/group_builder.h"

namespace tccl {

/// Collective over `parent`, whose parts are `parent_parts`. Members are ordered by (key, rank).
/// None for a negative color. If a rank cannot make its part of the new group, the parent fails: the
/// other ranks wait for that part.
std::optional<GroupParts> split_group(ContextImpl& context, Communicator& parent,
                                      const GroupParts& parent_parts, int color, int key,
                                      const Communicator::Options& options);

}  // namespace tccl
