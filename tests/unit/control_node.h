// A process as the tests of control connections need it: a monitor thread and a ControlPlane on
// loopback.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "health/control_plane.h"

namespace tccl {

using namespace std::chrono_literals;
using State = RemoteProcess::State;

inline constexpr const char* kSecret = "the job's secret";

inline Notice notice_of(const std::string& text) {
  return {.group_uid = 1, .kind = 2, .text = text};
}

/// Waits until the condition holds; false at the limit.
inline bool eventually(const std::function<bool()>& holds, std::chrono::milliseconds limit = 10s) {
  for (const Deadline deadline = deadline_after(limit); !holds(); std::this_thread::sleep_for(1ms))
    if (Clock::now() >= deadline) return false;
  return true;
}

/// The monitor and the control plane of one process.
class Node {
 public:
  explicit Node(const std::string& host, const std::string& address = "127.0.0.1",
                PortRange ports = {}, std::chrono::milliseconds liveness_timeout = 5s)
      : control(monitor, {.address = address,
                          .ports = ports,
                          .liveness_timeout = liveness_timeout,
                          .self = {.id = random_bytes32(), .host = host, .pid = ::getpid()},
                          .on_notice = [this](const auto& from, const Notice& notice) {
                            record(from, notice);
                          }}) {
    control.add_secret(kSecret);
  }

  std::shared_ptr<RemoteProcess> add(const Node& other, const std::string& secret = kSecret) {
    return control.add_peer(other.control.self(), secret);
  }
  /// By a notice: there is no other reason to connect.
  void connect(const std::shared_ptr<RemoteProcess>& peer) {
    control.send_notice(peer, notice_of("connect"));
  }
  std::vector<std::string> texts() {
    const std::lock_guard lock(mutex_);
    return texts_;
  }
  std::shared_ptr<RemoteProcess> last_sender() {
    const std::lock_guard lock(mutex_);
    return last_sender_;
  }
  bool receives(const std::string& text) {
    return eventually([&] {
      const auto all = texts();
      return std::ranges::find(all, text) != all.end();
    });
  }

 private:
  void record(const std::shared_ptr<RemoteProcess>& from, const Notice& notice) {
    const std::lock_guard lock(mutex_);
    texts_.push_back(notice.text);
    last_sender_ = from;
  }
  std::mutex mutex_;
  std::vector<std::string> texts_;
  std::shared_ptr<RemoteProcess> last_sender_;
  std::unique_ptr<ProcessPage> page_ = std::make_unique<ProcessPage>();

 public:
  Monitor monitor{*page_, [] {}};
  ControlPlane control;
};

/// Waits until the peer is not alive; whether it has this state then.
inline bool becomes(const std::shared_ptr<RemoteProcess>& peer, State state,
                    std::chrono::milliseconds limit = 10s) {
  eventually([&] { return peer->state() != State::alive; }, limit);
  return peer->state() == state;
}

}  // namespace tccl
