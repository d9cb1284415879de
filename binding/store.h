// c10d's key-value store, through which torch's ranks already meet, as a tccl::Store.
// Thread safety: as safe as the store it wraps; every store of torch is safe.
#pragma once

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tccl/store.h"

namespace torch_ccl {

class C10dStore final : public tccl::Store {
 public:
  /// `poll_interrupt` is called again and again while get() waits; what it throws ends the wait.
  C10dStore(c10::intrusive_ptr<c10d::Store> store, std::function<void()> poll_interrupt)
      : store_(std::move(store)), poll_interrupt_(std::move(poll_interrupt)) {}

  void set(const std::string& key, std::string_view value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  void remove(const std::string& key) override { store_->deleteKey(key); }
  [[nodiscard]] std::string host() const override;

 private:
  void wait_for(const std::string& key, std::chrono::milliseconds timeout);

  c10::intrusive_ptr<c10d::Store> store_;
  std::function<void()> poll_interrupt_;
};

}  // namespace torch_ccl
