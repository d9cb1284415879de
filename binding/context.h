// The process's tccl::Context and the communicators that the binding creates in it.
// Thread safety: every function may be called from any thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "tccl/communicator.h"

namespace torch_ccl {

/// Created at the first call.
std::shared_ptr<tccl::Context> context();

/// Collective over all ranks: rendezvous through `store`, whose keys belong to this group alone.
/// `options.ranks_in_parent` are global ranks, that is, of the last group with `is_world`.
std::shared_ptr<tccl::Communicator> make_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                      int rank, int size,
                                                      tccl::Communicator::Options options,
                                                      bool is_world);

/// Collective over the ranks of `parent` that are not excluded: see tccl::Communicator::shrink().
/// With `is_world` the result is the group of all ranks from now on.
std::shared_ptr<tccl::Communicator> shrink_communicator(tccl::Communicator& parent,
                                                        std::vector<int> excluded,
                                                        tccl::Communicator::Options options,
                                                        bool is_world);

/// Closes the context and joins its threads: see tccl::Context::close(). Python calls it before the
/// interpreter shuts down.
void close_context(std::chrono::milliseconds wait_for_operations);

}  // namespace torch_ccl
