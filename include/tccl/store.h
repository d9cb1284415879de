// The key-value store through which the ranks of a job find each other.
//
//   auto store = tccl::tcp_store("10.0.0.1", 29500, rank == 0, std::chrono::seconds(30));
//   auto comm = tccl::Communicator::create(context, *store, rank, size, {});
//
// Thread safety: implementations must allow concurrent calls from several threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tccl/export.h"

namespace tccl {

/// A method that fails throws Error{system}: the other ranks get its text.
class TCCL_API Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, std::string_view value) = 0;
  /// Waits until `key` exists; throws Error{timeout} after `timeout`. With a timeout of zero:
  /// returns the value or throws at once.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  /// Removing a key that does not exist is not an error.
  virtual void remove(const std::string& key) = 0;
  /// Name or address of the host that serves the store; empty if unknown. Ranks on several hosts
  /// use the network that has the route to it.
  [[nodiscard]] virtual std::string host() const { return {}; }
};

/// Keys are files in `directory`, which all ranks must share. It is created if missing, readable by
/// its owner only: a process that can read the keys can join the group. Throws
/// Error{invalid_argument} if it belongs to another user than this one or root.
TCCL_API std::shared_ptr<Store> file_store(const std::string& directory);

/// One rank passes serve=true and serves all ranks until its store is destroyed. There is no
/// authentication: a process that can reach the port can read the keys and join the group.
TCCL_API std::shared_ptr<Store> tcp_store(const std::string& host, std::uint16_t port, bool serve,
                                          std::chrono::milliseconds timeout);

}  // namespace tccl
