// Of a host only the network counts: that is what proves that ranks are on one.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

/// Moves the calling thread to the network namespace that a file such as /run/netns/a stands for.
inline void enter_network(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0 || ::setns(file, CLONE_NEWNET) != 0) throw std::runtime_error("setns " + path);
  ::close(file);
}
