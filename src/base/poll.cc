#include "base/poll.h"

#include <poll.h>

#include <cerrno>

#include "base/system_error.h"

namespace tccl {

bool wait_for_event(int fd, short event, Deadline deadline) {
  pollfd entry{.fd = fd, .events = event, .revents = 0};
  for (;;) {
    const int ready = ::poll(&entry, 1, poll_timeout(deadline));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= deadline) return false;
    if (ready < 0 && errno != EINTR) throw_system_error("poll");
  }
}

}  // namespace tccl
