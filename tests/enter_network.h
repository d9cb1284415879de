// Tests make hosts out of network namespaces: ranks share a host if they share a namespace, because
// only then they reach each other's abstract Unix sockets.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

/// Moves the calling thread to the network namespace of a file such as /run/netns/a.
inline void enter_network(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0 || ::setns(file, CLONE_NEWNET) != 0) throw std::runtime_error("setns " + path);
  ::close(file);
}
