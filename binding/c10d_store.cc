#include "c10d_store.h"

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "base/clock.h"
#include "interrupt.h"
#include "tccl/error.h"

namespace torch_ccl {

using std::chrono::steady_clock;

namespace {

/// tccl's stores throw tccl::Error. The text without the backtrace fits a message to other ranks.
template <class Action>
auto with_store_errors(const Action& action) {
  try {
    return action();
  } catch (const c10::Error& error) {
    throw tccl::Error(tccl::Errc::system,
                      std::string("torch's store failed: ") + error.what_without_backtrace());
  } catch (const std::exception& error) {  // of a store that is written in Python
    throw tccl::Error(tccl::Errc::system, std::string("torch's store failed: ") + error.what());
  }
}

}  // namespace

void C10dStore::set(const std::string& key, std::string_view value) {
  with_store_errors([&] { store_->set(key, std::vector<uint8_t>(value.begin(), value.end())); });
}

void C10dStore::remove(const std::string& key) {
  with_store_errors([&] { store_->deleteKey(key); });
}

// A key may be removed after wait_for() has seen it: TCPStore then returns an empty value, which no
// rank stores.
std::string C10dStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  for (const auto deadline = tccl::deadline_after(timeout);;) {
    wait_for(key, tccl::time_left(deadline));
    const std::vector<uint8_t> value = with_store_errors([&] { return store_->get(key); });
    if (!value.empty()) return {value.begin(), value.end()};
    if (tccl::Clock::now() >= deadline)
      throw tccl::Error(tccl::Errc::timeout, "the key '" + key + "' was removed from the store");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
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
  while (!with_store_errors([&] { return store_->check({key}); })) {
    const auto waited = steady_clock::now() - start;
    if (waited >= timeout) {
      throw tccl::Error(tccl::Errc::timeout, "timed out after " + tccl::text_of(timeout) +
                                                 ": no rank has stored the key '" + key + "'");
    }
    // Shorter waits are parts of longer ones, between which the library checks for interrupts: it
    // tells the other ranks that this one was interrupted.
    if (timeout > kInterruptInterval) check_interrupt_();
    std::this_thread::sleep_for(std::clamp<steady_clock::duration>(
        waited / 8, std::chrono::microseconds(200), std::chrono::milliseconds(50)));
  }
}

}  // namespace torch_ccl
