// Which interfaces oneCCL's variables CCL_MNIC_NAME and CCL_KVS_IFACE select.
// Thread safety: functions without shared state.
#pragma once

#include "config/settings.h"

namespace tccl {

/// CCL_SOCKET_IFNAME; if that is not set, oneCCL's preference, provided that an interface of this
/// host matches it: it may name RDMA devices.
InterfaceFilter effective_filter(const Settings& settings);

}  // namespace tccl
