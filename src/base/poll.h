// Waiting for one descriptor.
#pragma once

#include "base/clock.h"

namespace tccl {

/// False if `event` (POLLIN, POLLOUT) does not come before the deadline.
bool wait_for_event(int fd, short event, Deadline deadline);

}  // namespace tccl
