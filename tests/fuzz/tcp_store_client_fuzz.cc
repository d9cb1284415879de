// tcp_store's client: any reply, of a program that is not its server.
#include <poll.h>
#include <sys/socket.h>

#include <cstdlib>
#include <mutex>
#include <thread>

#include "base/tcp_socket.h"
#include "fuzz/input.h"
#include "rendezvous/tcp_store_server.h"
#include "tccl/error.h"
#include "tccl/store.h"

namespace tccl {
namespace {

/// Accepts connections one by one, reads the request and answers with `reply`.
class FakeServer {
 public:
  FakeServer() : thread_([this] { main(); }) { thread_.detach(); }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  /// Before the next request.
  void set_reply(std::string_view reply) {
    const std::lock_guard lock(mutex_);
    reply_ = reply;
  }

 private:
  void main() {
    for (;;) {
      pollfd entry{listener_.get(), POLLIN, 0};
      ::poll(&entry, 1, -1);
      const Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd) continue;
      char request[64];
      if (::recv(fd.get(), request, sizeof request, 0) <= 0) continue;  // only connected
      const std::lock_guard lock(mutex_);
      static_cast<void>(!::send(fd.get(), reply_.data(), reply_.size(), MSG_NOSIGNAL));
    }
  }

  Fd listener_ = listen_in_range("127.0.0.1", {});
  const std::uint16_t port_ = SocketAddress::of_local_end(listener_.get()).port();
  std::mutex mutex_;
  std::string reply_;
  std::thread thread_;
};

}  // namespace
}  // namespace tccl

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tccl;
  static FakeServer& server = *new FakeServer;  // its thread never ends
  static const std::shared_ptr<Store> client =
      tcp_store("127.0.0.1", server.port(), false, std::chrono::seconds(10));
  fuzz::Input input(data, size);
  const auto kind = input.take<std::uint8_t>();
  const std::string_view reply = input.take_rest();
  server.set_reply(reply);
  try {
    if (kind % 3 == 0) {
      client->set("key", "value");
    } else if (kind % 3 == 1) {
      client->remove("key");
    } else {
      const std::string value = client->get("key", std::chrono::milliseconds(0));
      if (value != reply.substr(4, value.size())) std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
