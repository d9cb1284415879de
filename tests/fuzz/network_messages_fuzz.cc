// Headers of libfabric messages, and notices: from any process that reaches the port of a rank, and
// from ranks of other versions.
#include <array>
#include <cstdlib>
#include <cstring>

#include "algorithms/registry.h"
#include "fuzz/input.h"
#include "health/control_protocol.h"
#include "operation/op_record.h"
#include "tccl/error.h"
#include "transport/membership.h"

namespace tccl {
namespace {

/// Rank 0 of a group, the only rank of its host.
class OneLocalRank final : public LocalMembership {
 public:
  [[nodiscard]] const std::string& group_name() const noexcept override { return name_; }
  [[nodiscard]] std::uint64_t group_uid() const noexcept override { return 1; }
  [[nodiscard]] int local_rank() const noexcept override { return 0; }
  [[nodiscard]] int global_rank(int local_rank) const override { return local_rank; }
  [[nodiscard]] std::string who(int /*local_rank*/) const override { return "rank 0"; }
  [[nodiscard]] PeerState state_of(int /*local_rank*/) const noexcept override {
    return PeerState::alive;
  }
  [[nodiscard]] std::uint32_t liveness_counter(int /*local_rank*/) const noexcept override {
    return 0;
  }
  [[nodiscard]] Error peer_lost_error(int /*local_rank*/,
                                      const std::string& operation) const override {
    return {Errc::peer_lost, operation};
  }
  [[nodiscard]] bool process_has_ended(int) const noexcept override { return false; }
  void note_lost(const LostRank& lost) noexcept override { lost_.push_back(lost); }
  [[nodiscard]] std::vector<LostRank> lost_ranks() const override { return lost_; }
  [[nodiscard]] bool failed() const noexcept override { return !failure_.empty(); }
  [[nodiscard]] Error failure() const override { return failure_.front(); }
  [[nodiscard]] FailureSource failure_source() const override { return source_; }
  [[nodiscard]] Error earlier_failure() const override { return failure(); }
  Error fail(const Error& reason, FailureSource source) noexcept override {
    if (!failed()) source_ = source, failure_.push_back(reason);
    return failure();
  }

 private:
  std::string name_ = "world";
  std::vector<LostRank> lost_;
  std::vector<Error> failure_;
  FailureSource source_;
};

/// RemoteProcess has no public constructor: the control plane makes them.
struct AnotherHost final : RemoteProcess {
  AnotherHost() : RemoteProcess({.host = "b", .pid = 2}) {}
};

void read_record(fuzz::Input& input) {
  const auto record = input.take<OpRecord>();
  if (!is_valid(record)) return;
  const char* algorithm =
      record.algorithm < algorithms().size() ? algorithms()[record.algorithm].name : "unknown";
  if (describe(record, algorithm).empty()) std::abort();
}

void read_notices(fuzz::Input& input) {
  const auto remote = std::make_shared<AnotherHost>();
  const std::array<int, 2> hosts{0, 1};
  Membership membership(std::make_shared<OneLocalRank>(), HostMap(hosts), {nullptr, remote},
                        /*control=*/nullptr);
  while (!input.empty()) {
    const auto kind = static_cast<GroupNotice>(input.take<std::uint8_t>());
    if (kind == GroupNotice::subscribe) continue;  // would be answered over a connection
    membership.handle_notice(*remote,
                             {1, static_cast<std::uint32_t>(kind), std::string(input.take_text())});
    static_cast<void>(membership.cannot_arrive(1, TrafficKind::collective, 0));
    if (const auto lost = membership.find_lost_rank(1, Membership::Losses::all))
      static_cast<void>(membership.lost_error(*lost, "allreduce"));
    membership.note_lost_ranks();
  }
  if (membership.failed()) static_cast<void>(std::strlen(membership.failure().what()));
}

}  // namespace
}  // namespace tccl

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tccl::fuzz::Input input(data, size);
  input.take<std::uint8_t>() % 2 == 0 ? tccl::read_record(input) : tccl::read_notices(input);
  return 0;
}
