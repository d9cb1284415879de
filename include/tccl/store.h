// The meeting point of a job: a key-value store that every rank can reach.
// Implementations must be safe from several threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tccl/export.h"

namespace tccl {

class TCCL_API Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, std::string_view value) = 0;
  /// Waits until `key` exists. Throws Error{timeout} when `timeout` has passed.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  /// A key that does not exist is no error.
  virtual void remove(const std::string& key) = 0;
  /// The host that serves it, by name or address; empty if that is unknown. Ranks on several hosts
  /// use the network that leads there.
  [[nodiscard]] virtual std::string host() const { return {}; }
};

/// Keys are files in `directory`, which must be shared by all ranks and is created if missing,
/// readable by its owner only: whoever reads the keys can join the group.
TCCL_API std::shared_ptr<Store> file_store(const std::string& directory);

/// One rank passes serve=true and answers for all of them until its store is destroyed. There is no
/// authentication: whoever reaches the port can read the keys and join the group.
TCCL_API std::shared_ptr<Store> tcp_store(const std::string& host, std::uint16_t port, bool serve,
                                          std::chrono::milliseconds timeout);

}  // namespace tccl
