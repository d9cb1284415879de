// A group of ranks: validates calls, numbers them, and hands them to the lane or to the p2p engine.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "communicator/context.h"
#include "communicator/lane.h"
#include "communicator/p2p.h"
#include "transport/members.h"
#include "transport/ofi/mailbox.h"
#include "transport/ofi/ofi_wire.h"
#include "transport/shm/shm_board.h"

namespace tccl {

class CommunicatorImpl final : public Communicator, private LaneExecutor {
 public:
  /// What its maker knows about its ranks.
  struct Parts {
    std::shared_ptr<shm::Group> group;  // on this host
    std::shared_ptr<Members> members;
    std::vector<ofi::RankAddress> addresses;  // by rank, if there are other hosts
    std::uint32_t group_number = 0;           // what others call the group when they send here
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
  void run(Program program, const CallOptions& options) override;
  std::shared_ptr<Work> start(Program program, CallOptions options) override;
  std::shared_ptr<Communicator> split(int colour, int key, Options options) override;
  [[nodiscard]] std::uint32_t next_sequence() const noexcept override {
    return options_.first_sequence + lane_->issued();
  }
  [[nodiscard]] std::exception_ptr error() const noexcept override;
  void check_ranks(const std::string& operation) const override;
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
  void require_unharmed() const;
  [[nodiscard]] Milliseconds effective(Milliseconds timeout) const;
  void validate_here(const Operation& operation) const;
  void execute(const Operation& operation, Milliseconds timeout) override;
  void execute(const Program& program, Milliseconds timeout) override;
  /// Without a deadline `timeout` bounds it, else that is for messages.
  void execute_by(std::optional<Deadline> deadline, const Operation& operation,
                  Milliseconds timeout);
  [[nodiscard]] OpRecord record_of(const Operation& operation, const Algorithm& chosen) const;
  struct Wish;
  struct Place;
  std::vector<Wish> exchange_wishes(int colour, int key);
  void seat(Parts& parts, const std::vector<Wish>& wishes, const std::vector<Place>& places) const;
  void run_over_hosts(const Algorithm& chosen, const Call& call, std::optional<Deadline> deadline,
                      Milliseconds timeout);
  void connect_hosts(const Parts& parts);
  [[nodiscard]] std::unique_ptr<ofi::Mailbox> mailbox_for(const Parts& parts) const;

  std::shared_ptr<ContextImpl> context_;
  Options options_;
  int rank_;
  int size_;
  std::shared_ptr<shm::Group> group_;
  std::shared_ptr<Members> members_;
  std::vector<ofi::RankAddress> addresses_;
  std::unique_ptr<shm::ShmBoard> board_;  // used by whoever runs the lane, both
  std::unique_ptr<ofi::OfiWire> wire_;    // only if there are other hosts
  std::shared_ptr<Lane> lane_;
  std::shared_ptr<P2p> p2p_;
  mutable std::mutex mutex_;  // guards what follows
  bool left_ = false;         // the group's memory may be given back
  std::exception_ptr final_error_;
  std::atomic<bool> closed_{false};
};

}  // namespace tccl
