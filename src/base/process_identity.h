// Identifies a process so that others can tell later whether it still runs, although its pid may
// have been given to another process.
//
//   store.set("rank/2", ProcessIdentity::of_this_process().text());
//   ProcessIdentity::from_text(store.get("rank/2", timeout)).has_ended();
//
// Thread safety: a value; functions without shared state.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace tccl {

class ProcessIdentity {
 public:
  static ProcessIdentity of_this_process();
  /// Text that is not from text() gives an identity of which nothing is known.
  static ProcessIdentity from_text(const std::string& text);
  [[nodiscard]] std::string text() const;

  /// Whether it is a process of this host, of which this process can know whether it has ended.
  [[nodiscard]] bool is_local() const;
  /// False also if it cannot be known: on another host or in another PID namespace.
  [[nodiscard]] bool has_ended() const;
  /// Whether a signal has stopped it. False also if it cannot be known.
  [[nodiscard]] bool is_stopped() const;

 private:
  std::string place_;  // host and namespaces; empty if they are unknown
  pid_t pid_ = 0;
  std::uint64_t start_time_ = 0;  // clock ticks since the host was started
};

}  // namespace tccl
