#include "c10d_store.h"

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "tccl/error.h"

namespace torch_ccl {

using std::chrono::steady_clock;

void C10dStore::set(const std::string& key, std::string_view value) {
  store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
}

std::string C10dStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  wait_for(key, timeout);
  const std::vector<uint8_t> value = store_->get(key);
  return {value.begin(), value.end()};
}

// A PrefixStore wraps the store that holds the keys. Only a TCPStore has a host.
std::string C10dStore::host() const {
  c10::intrusive_ptr<c10d::Store> store = store_;
  while (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get()))
    store = prefixed->getUnderlyingStore();
  if (auto* tcp = dynamic_cast<c10d::TCPStore*>(store.get())) return tcp->getHost();
  return {};
}

// Polls, because wait() of torch's stores cannot be interrupted, blocks the other threads that
// share the connection, and prints a warning at its timeout. The pause grows with the time already
// waited: polling adds at most an eighth to the wait and little load to the server.
void C10dStore::wait_for(const std::string& key, std::chrono::milliseconds timeout) {
  const auto start = steady_clock::now();
  while (!store_->check({key})) {
    const auto waited = steady_clock::now() - start;
    if (waited >= timeout) {
      throw tccl::Error(tccl::Errc::timeout, "no rank stored the key '" + key + "' within " +
                                                 std::to_string(timeout.count()) + " ms");
    }
    check_interrupt_();
    std::this_thread::sleep_for(std::clamp<steady_clock::duration>(
        waited / 8, std::chrono::microseconds(200), std::chrono::milliseconds(50)));
  }
}

}  // namespace torch_ccl
