// A group of ranks: validates calls, numbers them, and hands them to the queue or to the p2p
// engine.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "communicator/context_impl.h"
#include "communicator/operation_queue.h"
#include "communicator/p2p.h"
#include "transport/members.h"
#include "transport/ofi/ofi_channel.h"
#include "transport/ofi/ofi_p2p.h"
#include "transport/shm/shm_board.h"

namespace tccl {

class CommunicatorImpl final : public Communicator, private Executor {
 public:
  /// What its maker knows about its ranks.
  struct Parts {
    std::shared_ptr<shm::Group> group;  // on this host
    std::shared_ptr<Members> members;
    std::vector<ofi::RankAddress> addresses;  // by rank, if there are other hosts
    std::uint32_t group_id = 0;               // what others call the group when they send here
  };
  CommunicatorImpl(std::shared_ptr<ContextImpl> context, const Parts& parts, Options options);
  ~CommunicatorImpl() override;

  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int size() const noexcept override { return size_; }
  [[nodiscard]] const std::string& name() const noexcept override { return options_.name; }

  using Communicator::run;
  using Communicator::start;
  void run(const Operation& operation, const CallOptions& options) override;
  bool try_run(const Operation& operation, Milliseconds timeout) override;
  std::shared_ptr<Work> start(const Operation& operation, CallOptions options) override;
  void run(OperationSequence sequence, const CallOptions& options) override;
  std::shared_ptr<Work> start(OperationSequence sequence, CallOptions options) override;
  std::shared_ptr<Communicator> split(int color, int key, Options options) override;
  [[nodiscard]] std::uint32_t next_sequence() const noexcept override {
    return options_.first_sequence + queue_->issued();
  }
  [[nodiscard]] std::exception_ptr error() const noexcept override;
  void check_peers(const std::string& operation) const override;
  [[nodiscard]] bool is_closed() const noexcept override {
    return closed_.load(std::memory_order_relaxed);
  }
  void abort(const std::string& reason) noexcept override;
  void close() noexcept override;
  /// Closes it, after an abort only if something is under way: a normal exit disturbs nobody.
  void leave() noexcept;

 private:
  void require_open() const;
  void await(const std::shared_ptr<Work>& work);
  void check_alive() const;
  [[nodiscard]] Milliseconds effective(Milliseconds timeout) const;
  void validate_here(const Operation& operation) const;
  void execute(const Operation& operation, Milliseconds timeout) override;
  void execute(const OperationSequence& sequence, Milliseconds timeout) override;
  /// Without a deadline `timeout` bounds it, else that is for messages.
  void execute_by(std::optional<Deadline> deadline, const Operation& operation,
                  Milliseconds timeout);
  [[nodiscard]] OpRecord record_of(const Operation& operation, const Algorithm& chosen) const;
  struct SplitRequest;
  struct GroupAddress;
  std::vector<SplitRequest> exchange_split_requests(int color, int key);
  void set_members(Parts& parts, const std::vector<SplitRequest>& split_requests,
                   const std::vector<GroupAddress>& addresses) const;
  void run_over_hosts(const Algorithm& chosen, const CollectiveTask& call,
                      std::optional<Deadline> deadline, Milliseconds timeout);
  void connect_hosts(const Parts& parts);
  [[nodiscard]] std::unique_ptr<ofi::OfiP2p> make_ofi_p2p(const Parts& parts) const;

  std::shared_ptr<ContextImpl> context_;
  Options options_;
  int rank_;
  int size_;
  std::shared_ptr<shm::Group> group_;
  std::shared_ptr<Members> members_;
  std::vector<ofi::RankAddress> addresses_;
  std::unique_ptr<shm::ShmBoard> board_;      // used by whoever runs the queue, both
  std::unique_ptr<ofi::OfiChannel> channel_;  // only if there are other hosts
  std::shared_ptr<OperationQueue> queue_;
  std::shared_ptr<P2p> p2p_;
  mutable std::mutex mutex_;  // guards what follows
  bool left_ = false;         // the group's memory may be given back
  std::exception_ptr final_error_;
  std::atomic<bool> closed_{false};
};

}  // namespace tccl
