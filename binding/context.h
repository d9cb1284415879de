// The process's tccl::Context, and the communicators that the binding makes with it. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tccl/communicator.h"

namespace torch_ccl {

/// Made at the first use.
std::shared_ptr<tccl::Context> context();

/// Meets the other ranks through `store`, whose keys belong to this group alone.
std::shared_ptr<tccl::Communicator> make_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                      int rank, int size,
                                                      tccl::Communicator::Options options);

/// Lets Ctrl-C end a wait: throws what Python's handler of a pending signal raised.
void poll_interrupt();

/// Says goodbye to all peers. Python calls it while it is still whole.
void close_context();

}  // namespace torch_ccl
