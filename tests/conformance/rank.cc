#include "rank.h"

#include <unistd.h>

#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "collective_run.h"
#include "enter_network.h"
#include "formats.h"
#include "groups.h"
#include "point_to_point.h"
#include "random.h"
#include "reference.h"
#include "tccl/tccl.h"

namespace conformance {

namespace {

constexpr std::size_t kMaxPending = 4;  // asynchronous operations in flight
constexpr std::uint64_t kMaxLines = 3;  // failures printed per rank

/// One system call, so that lines of several ranks do not interleave.
void print_line(const std::string& text) {
  const std::string line = text + "\n";
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) ::_exit(2);
}

/// The library's tables must match the reference.
void check_tables() {
  for (int d = 0; d < tccl::kDTypeCount; ++d) {
    const auto dtype = static_cast<tccl::DType>(d);
    if (tccl::size_of(dtype) != element_bytes(dtype)) {
      throw std::logic_error("size_of(" + std::string(name_of(dtype)) + ") is wrong");
    }
    for (int r = 0; r < tccl::kReduceOpCount; ++r) {
      const auto op = static_cast<tccl::ReduceOp>(r);
      if (tccl::supports(dtype, op) != reference_supports(dtype, op)) {
        throw std::logic_error("supports(" + std::string(name_of(dtype)) + ", " +
                               std::string(name_of(op)) + ") is wrong");
      }
    }
  }
}

bool is_rejected(tccl::Communicator& world, tccl::DType dtype, tccl::ReduceOp op) {
  std::byte in[tccl::kMaxElementBytes] = {};
  std::byte out[tccl::kMaxElementBytes] = {};
  try {
    world.run(tccl::allreduce(in, out, 1, dtype, op));
  } catch (const tccl::Error& error) {
    return error.code() == tccl::Errc::invalid_argument;
  }
  return false;
}

/// Unsupported reductions are rejected at the call, use no sequence number and leave the group
/// usable.
void check_rejections(tccl::Communicator& world) {
  const std::uint32_t before = world.next_sequence();
  for (int d = 0; d < tccl::kDTypeCount; ++d) {
    for (int r = 0; r < tccl::kReduceOpCount; ++r) {
      const auto dtype = static_cast<tccl::DType>(d);
      const auto op = static_cast<tccl::ReduceOp>(r);
      if (!reference_supports(dtype, op) && !is_rejected(world, dtype, op)) {
        throw std::logic_error("allreduce of " + std::string(name_of(dtype)) + " with " +
                               std::string(name_of(op)) + " was not rejected");
      }
    }
  }
  if (world.next_sequence() != before)
    throw std::logic_error("rejected calls used a sequence number");
  world.run(tccl::barrier());
}

void enter_host(const Options& options, int rank) {
  if (options.host_of.empty()) return;
  const int host = options.host_of.at(static_cast<std::size_t>(rank));
  enter_network(options.namespaces.at(static_cast<std::size_t>(host)));
}

class Rank {
 public:
  Rank(const Run& run, int rank) : run_(run), rank_(rank) {}
  /// After an error, operations may be in flight: close() ends them before their buffers are freed.
  ~Rank() {
    if (context_) context_->close();
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void run_all();
  void report(const Case& one, const std::string& who, const std::string& problem);
  [[nodiscard]] const Case& current() const { return *current_; }

 private:
  void create();
  void run_case(const Case& one);
  void run_collective(const Case& one, Group group);
  void finish_oldest();
  void check(CollectiveRun& collective);
  void check_barrier(const Case& one, const Group& group);
  void leave(const Case& one, const Group& group);
  [[nodiscard]] std::uint64_t seed() const { return run_.options.request.seed; }

  const Run& run_;
  int rank_;
  const Case* current_ = run_.cases.data();  // for messages
  std::shared_ptr<tccl::Context> context_;
  std::shared_ptr<tccl::Store> store_;
  std::shared_ptr<tccl::Communicator> world_;
  std::optional<Groups> groups_;
  std::deque<std::unique_ptr<CollectiveRun>> pending_;
};

std::string rank_text(const Group& group, const Case& one) {
  std::string text = "rank " + std::to_string(group.rank()) + " of " + std::to_string(group.size());
  if (is_rooted(one.op) || one.pattern == Pattern::any_source) {
    text += " root=" + std::to_string(one.root(group.size()));
  }
  return text;
}

void Rank::create() {
  context_ = tccl::Context::create();
  store_ = tccl::file_store(run_.store_directory);
  tccl::Communicator::Options options;
  options.first_sequence = run_.options.first_sequence;
  // Below the watchdog's timeout, because the library's error says more.
  options.timeout = std::chrono::seconds(run_.options.watchdog_s) * 3 / 4;
  world_ = tccl::Communicator::create(context_, *store_, rank_, run_.options.request.ranks,
                                      std::move(options));
  groups_.emplace(seed(), world_);
}

void Rank::run_all() {
  check_tables();
  create();
  for (const Case& one : run_.cases) {
    if (one.index < run_.options.first || one.index > run_.options.last) continue;
    current_ = &one;
    run_case(one);
  }
  while (!pending_.empty()) finish_oldest();
  check_rejections(*world_);
  groups_->close();
}

void Rank::run_case(const Case& one) {
  run_.state.begin(rank_, one.index);
  std::optional<Group> group = groups_->group_for(one);
  if (!group) {
    run_.state.count_finished(rank_);
  } else if (one.pattern == Pattern::none) {
    run_collective(one, std::move(*group));
  } else {
    if (auto problem = run_pattern(seed(), one, *group)) {
      report(one, rank_text(*group, one), *problem);
    }
    leave(one, *group);
  }
}

void Rank::run_collective(const Case& one, Group group) {
  if (!run_.options.host_of.empty())
    for (const int member : group.world_ranks)
      group.hosts.push_back(run_.options.host_of.at(static_cast<std::size_t>(member)));
  const bool async = one.async_on(group.rank());
  Random random{seed(), one.index, static_cast<std::uint64_t>(rank_)};
  const auto allocate = [&] {
    const bool shared = run_.options.shared && (one.index % 2 == 0 || random.one_in(2));
    return shared ? Allocate([this](std::size_t bytes) { return context_->allocate(bytes); })
                  : Allocate(private_memory);
  };
  const Allocate for_input = allocate();
  auto collective =
      std::make_unique<CollectiveRun>(seed(), one, std::move(group), for_input, allocate());
  if (!async) {
    collective->run();
    check(*collective);
    return;
  }
  collective->start();
  pending_.push_back(std::move(collective));
  if (pending_.size() == kMaxPending) finish_oldest();
}

void Rank::finish_oldest() {
  const std::unique_ptr<CollectiveRun> oldest = std::move(pending_.front());
  pending_.pop_front();
  oldest->wait();
  check(*oldest);
}

void Rank::check(CollectiveRun& collective) {
  const Case& one = collective.description();
  if (auto problem = collective.check()) report(one, rank_text(collective.group(), one), *problem);
  if (one.op == tccl::Op::barrier) check_barrier(one, collective.group());
  if (same_result_everywhere(one.op)) {
    run_.state.set_hash(rank_, one.index, collective.output_hash());
  }
  leave(one, collective.group());
}

void Rank::check_barrier(const Case& one, const Group& group) {
  for (const int member : group.world_ranks) {
    if (run_.state.begun(member) <= one.index) {
      report(one, rank_text(group, one),
             "left the barrier before world rank " + std::to_string(member) + " entered");
    }
  }
}

void Rank::leave(const Case& one, const Group& group) {
  if (one.members == Members::fresh) group.communicator->close();
  run_.state.count_finished(rank_);
}

void Rank::report(const Case& one, const std::string& who, const std::string& problem) {
  run_.state.count_failure(rank_);
  if (run_.state.failures(rank_) > kMaxLines) return;
  print_line(failure_line(run_, one, who, problem));
}

}  // namespace

void run_rank(const Run& run, int rank) noexcept {
  Rank self(run, rank);
  try {
    enter_host(run.options, rank);
    self.run_all();
  } catch (const std::exception& error) {
    self.report(self.current(), "world rank " + std::to_string(rank), error.what());
  }
}

std::string failure_line(const Run& run, const Case& one, const std::string& who,
                         const std::string& problem) {
  return "FAILED " + describe(one) + " P=" + std::to_string(run.options.request.ranks) + " " + who +
         ": " + problem + " | reproduce: " + command_for(run.options, one.index);
}

}  // namespace conformance
