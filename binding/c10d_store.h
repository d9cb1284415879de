// Adapts c10d's key-value store, over which torch's ranks rendezvous, to tccl::Store.
// Thread safety: that of the wrapped store; every store of torch is thread-safe.
#pragma once

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tccl/store.h"

namespace torch_ccl {

class C10dStore final : public tccl::Store {
 public:
  /// `check_interrupt` is called repeatedly during a long get(); an exception from it ends the wait.
  C10dStore(c10::intrusive_ptr<c10d::Store> store, std::function<void()> check_interrupt)
      : store_(std::move(store)), check_interrupt_(std::move(check_interrupt)) {}

  void set(const std::string& key, std::string_view value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  void remove(const std::string& key) override;
  [[nodiscard]] std::string host() const override;

 private:
  void wait_for(const std::string& key, std::chrono::milliseconds timeout);

  c10::intrusive_ptr<c10d::Store> store_;
  std::function<void()> check_interrupt_;
};

}  // namespace torch_ccl
