// Waits for an event on one file descriptor, with a deadline.
// Thread safety: no shared state.
#pragma once

#include "base/clock.h"

namespace tccl {

/// `event` is POLLIN or POLLOUT. True when it (or an error) is reported, false at the deadline.
bool wait_for_event(int fd, short event, Deadline deadline);

}  // namespace tccl
