#include "collective_run.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "data.h"
#include "formats.h"
#include "shape.h"

namespace conformance {

using tccl::Op;

namespace {

std::vector<std::size_t> in_bytes(const Case& one, std::vector<std::size_t> counts) {
  for (std::size_t& count : counts) count *= element_bytes(one.dtype);
  return counts;
}

/// Inputs and outputs are aligned to their elements, usually to nothing more.
std::size_t skew_bytes(const Case& one, std::uint64_t draw) {
  return element_bytes(one.dtype) * (draw % 5);
}

bool has_input_in_output(const Case& one) { return one.in_place || one.op == Op::broadcast; }

std::string hex(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "0x";
  for (auto byte = bytes.rbegin(); byte != bytes.rend(); ++byte) {
    const auto value = std::to_integer<unsigned>(*byte);
    text += {kDigits[value >> 4], kDigits[value & 15]};
  }
  return text;
}

}  // namespace

CollectiveRun::CollectiveRun(std::uint64_t seed, const Case& one, Group group,
                             const Allocate& for_input, const Allocate& for_output)
    : seed_(seed),
      case_(one),
      group_(std::move(group)),
      input_(in_bytes(one, input_counts(seed, one, group_.size(), group_.rank())),
             has_scattered_input(one.op), skew_bytes(one, one.root_draw), for_input),
      output_(in_bytes(one, output_counts(seed, one, group_.size(), group_.rank())),
              has_scattered_output(one.op), skew_bytes(one, one.root_draw / 5), for_output) {
  write_inputs();
  input_.save();
  output_.save();
}

void CollectiveRun::write_inputs() {
  const auto own_rank = static_cast<std::size_t>(group_.rank());
  const bool has_own_block = case_.op == Op::allgather || case_.op == Op::allgatherv;
  for (std::size_t block = 0; block < input_.size(); ++block) {
    const Bytes content = input_of(group_.rank(), static_cast<int>(block));
    input_.write(block, content);
    if (!has_input_in_output(case_) || output_.size() == 0) continue;
    output_.write(has_own_block ? own_rank : block, content);
  }
}

Bytes CollectiveRun::input_of(int rank, int block) const {
  const std::vector<std::size_t> counts = input_counts(seed_, case_, group_.size(), rank);
  const int world_rank = group_.world_ranks.at(static_cast<std::size_t>(rank));
  return make_block(seed_, case_, world_rank, block, counts.at(static_cast<std::size_t>(block)));
}

tccl::Reduction CollectiveRun::reduction() const {
  if (case_.reduction != tccl::ReduceOp::premul_sum) return case_.reduction;
  const int world_rank = group_.world_ranks.at(static_cast<std::size_t>(group_.rank()));
  return {case_.reduction, make_factor(seed_, case_, world_rank)};
}

const void* CollectiveRun::input_pointer() {
  if (input_.size() == 0) return nullptr;
  if (!case_.in_place || output_.size() == 0) return input_.data();
  if (case_.op != Op::allgather && case_.op != Op::allgatherv) return output_.data();
  return output_[static_cast<std::size_t>(group_.rank())].data();
}

void* CollectiveRun::output_pointer() { return output_.data(); }

tccl::Operation CollectiveRun::operation() {
  const int root = case_.root(group_.size());
  switch (case_.op) {
    case Op::barrier:
      return tccl::barrier();
    case Op::broadcast:
      return tccl::broadcast(output_pointer(), case_.count, case_.dtype, root);
    case Op::allreduce:
      return tccl::allreduce(input_pointer(), output_pointer(), case_.count, case_.dtype,
                             reduction());
    case Op::reduce:
      return tccl::reduce(input_pointer(), output_pointer(), case_.count, case_.dtype, reduction(),
                          root);
    case Op::allgather:
      return tccl::allgather(input_pointer(), output_pointer(), case_.count, case_.dtype);
    case Op::gather:
      return tccl::gather(input_pointer(), output_pointer(), case_.count, case_.dtype, root);
    case Op::scatter:
      return tccl::scatter(input_pointer(), output_pointer(), case_.count, case_.dtype, root);
    case Op::reduce_scatter:
      return tccl::reduce_scatter(input_pointer(), output_pointer(), case_.count, case_.dtype,
                                  reduction());
    case Op::alltoall:
      return tccl::alltoall(input_pointer(), output_pointer(), case_.count, case_.dtype);
    default:
      return v_form();
  }
}

tccl::Operation CollectiveRun::v_form() {
  const std::size_t element = element_bytes(case_.dtype);
  const auto as_block = [&](std::span<std::byte> bytes) {
    const bool is_null = bytes.empty() && case_.null_if_unused;
    return tccl::Block{is_null ? nullptr : bytes.data(), bytes.size() / element};
  };
  input_list_.clear();
  output_list_.clear();
  for (std::size_t block = 0; block < input_.size(); ++block) {
    input_list_.push_back({as_block(input_[block]).data, as_block(input_[block]).count});
  }
  for (std::size_t block = 0; block < output_.size(); ++block) {
    output_list_.push_back(as_block(output_[block]));
  }
  const int root = case_.root(group_.size());
  switch (case_.op) {
    case Op::allgatherv:
      return tccl::allgatherv(input_pointer(), output_list_, case_.dtype);
    case Op::gatherv:
      return tccl::gatherv(input_list_.at(0), output_list_, case_.dtype, root);
    case Op::scatterv:
      return tccl::scatterv(input_list_, output_list_.at(0), case_.dtype, root);
    case Op::reduce_scatterv:
      return tccl::reduce_scatterv(input_list_, output_pointer(), case_.dtype, reduction());
    case Op::alltoallv:
      return tccl::alltoallv(input_list_, output_list_, case_.dtype);
    default:
      throw std::logic_error("not a collective");
  }
}

void CollectiveRun::wait() {
  if (!work_) return;
  work_->wait();
  if (!work_->done()) throw std::logic_error("wait() returned before done()");
}

std::optional<std::string> CollectiveRun::check() {
  if (!input_.unchanged()) return "the input or bytes around it were changed";
  if (!output_.guards_intact()) return "bytes around the output were changed";
  Scenario scenario;
  scenario.op = case_.op;
  scenario.dtype = case_.dtype;
  scenario.reduction = case_.reduction;
  scenario.size = group_.size();
  scenario.root = case_.root(group_.size());
  scenario.hosts = group_.hosts;
  scenario.input = [this](int rank, int block) { return input_of(rank, block); };
  for (const int world_rank : group_.world_ranks) {
    scenario.factors.push_back(make_factor(seed_, case_, world_rank));
  }
  const std::vector<Bytes> expected = expected_outputs(scenario, group_.rank());
  if (expected.empty() && !output_.unchanged()) return "the output of a rank that has none changed";
  for (std::size_t block = 0; block < expected.size(); ++block) {
    if (auto problem = check_block(block, expected[block])) return problem;
  }
  return {};
}

std::optional<std::string> CollectiveRun::check_block(std::size_t block, const Bytes& expected) {
  const std::span<const std::byte> got = output_[block];
  const auto index = first_difference(case_.dtype, expected, got, is_reduction(case_.op));
  if (!index) return {};
  const std::size_t element = element_bytes(case_.dtype);
  const auto element_at = [&](std::span<const std::byte> bytes) {
    return hex(bytes.subspan(*index * element, element));
  };
  return "block " + std::to_string(block) + " index " + std::to_string(*index) + " of " +
         std::to_string(expected.size() / element) + ": got " + element_at(got) + " expected " +
         element_at(expected);
}

std::uint64_t CollectiveRun::output_hash() {
  std::uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
  for (std::size_t block = 0; block < output_.size(); ++block) {
    for (const std::byte byte : output_[block]) {
      hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001B3;
    }
  }
  return hash;
}

}  // namespace conformance
