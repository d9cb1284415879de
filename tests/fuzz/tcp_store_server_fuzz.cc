// tcp_store's server: up to three connections with any bytes. It must serve the next client.
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "base/tcp_socket.h"
#include "base/unix_socket.h"
#include "fuzz/input.h"
#include "rendezvous/tcp_store_server.h"
#include "tccl/store.h"

namespace tccl {
namespace {

struct Job {
  static std::uint16_t free_port() {
    const Fd listener = listen_in_range("127.0.0.1", {});
    return SocketAddress::of_local_end(listener.get()).port();
  }
  const std::uint16_t port = free_port();
  TcpStoreServer server{"127.0.0.1", port};
  std::shared_ptr<Store> client = tcp_store("127.0.0.1", port, false, std::chrono::seconds(10));
};

/// A new one from time to time: the values of strangers stay in the store.
Job& job() {
  static std::unique_ptr<Job> job;
  static int inputs = 0;
  if (inputs++ % 500 == 0) job = std::make_unique<Job>();
  return *job;
}

Fd connect_to_port(std::uint16_t port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress address = SocketAddress::parse("127.0.0.1", port);
  while (::connect(fd.get(), address.get(), address.length()) != 0) {
    if (errno != EADDRNOTAVAIL) std::abort();
    // The client's connections of the last minute have all ports.
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  // Closing resets the connection: otherwise its port stays taken.
  const linger reset{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  return fd;
}

}  // namespace
}  // namespace tccl

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tccl;
  Job& current = job();
  fuzz::Input input(data, size);
  std::vector<Fd> connections;
  for (int i = 0; i < 3 && !input.empty(); ++i) {
    const std::string_view request = i < 2 ? input.take_text() : input.take_rest();
    connections.push_back(connect_to_port(current.port));
    static_cast<void>(
        !::send(connections.back().get(), request.data(), request.size(), MSG_NOSIGNAL));
  }
  // The server handles connections in the order in which they came: now it has read the others.
  current.client->set("key", "value");
  if (current.client->get("key", std::chrono::milliseconds(0)) != "value") std::abort();
  return 0;
}
