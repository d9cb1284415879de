// The server of tcp_store(): a key-value store that one thread serves.
//
//   TcpStoreServer server("10.0.0.1", 29500);   // throws Error{system} if it cannot listen
//
// A connection carries one request, {kind, key length, value length, key, value}, and its reply,
// {length, value}: to GET once the key exists, to PEEK at once (kNoSuchKey if there is none), to SET
// and REMOVE with length 0. So a waiting GET blocks no other request.
//
// Anyone who can reach the port may connect. So the number of connections, the time for a request
// and the memory for keys and values are limited; beyond the limits a connection waits or is closed.
// Thread safety: construct and destroy on one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/fork_hook.h"
#include "base/tcp_socket.h"

namespace tccl::tcp_store_protocol {

enum class Kind : std::uint32_t { set, get, remove, peek };

struct RequestHeader {
  Kind kind;
  std::uint32_t key_bytes;
  std::uint32_t value_bytes;
};
constexpr std::uint32_t kMaxFieldBytes = 16u << 20;
constexpr std::uint32_t kNoSuchKey = ~std::uint32_t{0};  // in place of a reply's length

/// Throws Error{system} if the name cannot be resolved.
std::vector<SocketAddress> addresses_of(const std::string& host, std::uint16_t port);

}  // namespace tccl::tcp_store_protocol

namespace tccl {

class TcpStoreServer {
 public:
  struct Limits {
    std::size_t connections = 4096;             // and at most half of the process's descriptors
    std::size_t bytes = std::size_t{1} << 30;   // of all keys and values, stored or announced
    std::chrono::milliseconds request{30'000};  // to send a request, and to read its reply
  };
  TcpStoreServer(const std::string& host, std::uint16_t port, Limits limits);
  TcpStoreServer(const std::string& host, std::uint16_t port)
      : TcpStoreServer(host, port, Limits()) {}
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

 private:
  using Value = std::shared_ptr<const std::string>;  // replies refer to stored values

  struct Connection {
    enum class State : std::uint8_t { reads_request, waits_for_key, sends_reply };
    State state = State::reads_request;
    Fd fd;
    Deadline deadline;              // of the request or the reply
    std::size_t announced_bytes{};  // of key and value
    std::string request{};
    std::string key{};  // of a GET that waits
    std::uint32_t reply_length{};
    Value reply{};
    std::size_t sent{};
  };

  void main();
  [[nodiscard]] Deadline next_deadline() const;
  [[nodiscard]] bool accepts_connections() const;
  void accept_one();
  void serve(Connection& c);
  void read_request(Connection& c);
  [[nodiscard]] bool accepts_header(Connection& c) const;
  void handle(Connection& c);
  void set(const std::string& key, std::string value);
  void remove(const std::string& key);
  void limit_waiting();
  void reply_when_set(Connection& c, const std::string& key);
  void start_reply(Connection& c, std::uint32_t length, Value value);
  void send_reply(Connection& c) const;
  void close_in_child() noexcept;

  const Limits limits_;
  const pid_t owner_;
  Fd listener_;
  Fd stop_;
  Deadline accept_again_at_{};  // after accept() has failed
  // Held while connections are served and across fork(): a child sees none that is half done.
  std::mutex mutex_;
  std::map<std::string, Value> values_;
  std::size_t stored_bytes_ = 0;
  std::vector<Connection> connections_;
  std::thread thread_;
  ForkHook fork_hook_;
};

}  // namespace tccl
