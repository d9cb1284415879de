// One collective case on one rank: its buffers, the call, and the check of the result.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "buffers.h"
#include "cases.h"
#include "tccl/tccl.h"

namespace conformance {

/// A communicator and the ranks that its members have in the world.
struct Group {
  std::shared_ptr<tccl::Communicator> communicator;
  std::vector<int> world_ranks;
  std::vector<int> hosts{};  // by rank, if they are on several hosts

  [[nodiscard]] int size() const { return communicator->size(); }
  [[nodiscard]] int rank() const { return communicator->rank(); }
};

class CollectiveRun {
 public:
  CollectiveRun(std::uint64_t seed, const Case& one, Group group, const Allocate& for_input,
                const Allocate& for_output);

  void run() { group_.communicator->run(operation()); }
  void start() { work_ = group_.communicator->start(operation()); }
  /// Does nothing after run().
  void wait();

  /// The first problem of the result, if any.
  [[nodiscard]] std::optional<std::string> check();
  /// Hash of the output, to be compared between ranks.
  [[nodiscard]] std::uint64_t output_hash();
  [[nodiscard]] const Case& description() const { return case_; }
  [[nodiscard]] const Group& group() const { return group_; }

 private:
  [[nodiscard]] tccl::Operation operation();
  [[nodiscard]] tccl::Operation v_form();
  [[nodiscard]] Bytes input_of(int rank, int block) const;
  [[nodiscard]] tccl::Reduction reduction() const;
  [[nodiscard]] const void* input_pointer();
  [[nodiscard]] void* output_pointer();
  [[nodiscard]] std::optional<std::string> check_block(std::size_t block, const Bytes& expected);
  void write_inputs();

  std::uint64_t seed_;
  Case case_;
  Group group_;
  Blocks input_;
  Blocks output_;
  std::vector<tccl::ConstBlock> input_list_;  // the Operation's spans refer to it
  std::vector<tccl::Block> output_list_;
  std::shared_ptr<tccl::Work> work_;
};

}  // namespace conformance
