// What serves a group, in one line for the log.
// Thread safety: a pure function.
#pragma once

#include <string>

#include "communicator/context_impl.h"
#include "transport/membership.h"

namespace tccl {

/// "4 ranks on 2 hosts (node7 0,1; node8 2,3); shared memory on a host, libfabric provider
/// tcp;ofi_rxm at 10.0.0.1 between hosts; 3 workers per rank; kernels avx512; algorithms: ..."
std::string describe_group(ContextImpl& context, const Membership& group);

}  // namespace tccl
