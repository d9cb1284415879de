// The port of rank 0 that watches the other hosts: bytes of a stranger, and of a rank after its
// handshake. A stranger cannot end the rendezvous.
#include <poll.h>
#include <sys/socket.h>

#include <cstdlib>

#include "base/tcp_socket.h"
#include "fuzz/input.h"
#include "rendezvous/exit_watch.h"
#include "rendezvous/host_discovery.h"
#include "tccl/error.h"
#include "unit/memory_store.h"

namespace tccl {
namespace {

struct RankZeroJob {
  MemoryStore store;
  RendezvousOptions options{.store = &store,
                            .group = "world",
                            .secret = "secret",
                            .rank = 0,
                            .size = 2,
                            .timeout = std::chrono::seconds(20),
                            .deadline = deadline_after(std::chrono::hours(100))};
  Fd listener = listen_for_exit_watch({.usable = {"127.0.0.1"}});
  SocketAddress address = SocketAddress::of_local_end(listener.get());
  ExitWatchServer server{options, std::move(listener)};
};

Fd connected_to(const SocketAddress& address) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), address.get(), address.length()) != 0) std::abort();
  const linger reset{.l_onoff = 1, .l_linger = 0};  // leaves no port in TIME_WAIT
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  return fd;
}

}  // namespace
}  // namespace tccl

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tccl;
  static RankZeroJob& job = *new RankZeroJob;  // its thread never ends
  const Fd stranger = connected_to(job.address);
  Challenge challenge;
  if (::recv(stranger.get(), &challenge, sizeof challenge, MSG_WAITALL) != sizeof challenge)
    std::abort();
  static_cast<void>(!::send(stranger.get(), data, size, MSG_NOSIGNAL));
  try {
    throw_if_failure_published(store_client_for(job.options, {}));
  } catch (const Error&) {
    std::abort();
  }
  return 0;
}
