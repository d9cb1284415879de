#include "communicator/validate.h"

#include <algorithm>

#include "base/format.h"
#include "operation/op_traits.h"
#include "tccl/error.h"

namespace tccl {
namespace {

class Validator {
 public:
  Validator(const Operation& operation, const ValidationLimits& limits)
      : o_(operation),
        rank_(limits.rank),
        size_(limits.size),
        group_(limits.name),
        chunk_bytes_(limits.chunk_bytes) {}

  void run() const {
    if (reduces(o_.op)) check_reduction();
    check_root();
    check_size();
    const bool is_root = rank_ == o_.root;
    switch (o_.op) {
      case Op::barrier:
        return;
      case Op::send:
        return check_in();
      case Op::recv:
        return check_out();
      case Op::broadcast:
      case Op::allreduce:
      case Op::allgather:
      case Op::reduce_scatter:
      case Op::alltoall:
        check_in();
        return check_out();
      case Op::reduce:
      case Op::gather:
        check_in();
        return is_root ? check_out() : void();
      case Op::scatter:
        check_out();
        return is_root ? check_in() : void();
      case Op::allgatherv:
        check_blocks("output", o_.out_blocks);
        return require(
            o_.out_blocks[static_cast<std::size_t>(rank_)].count == 0 || o_.in != nullptr,
            "input is null");
      case Op::gatherv:
        check_in();
        return is_root ? check_blocks("output", o_.out_blocks) : void();
      case Op::scatterv:
        check_out();
        return is_root ? check_blocks("input", o_.in_blocks) : void();
      case Op::reduce_scatterv:
        check_blocks("input", o_.in_blocks);
        return require(
            o_.in_blocks[static_cast<std::size_t>(rank_)].count == 0 || o_.out != nullptr,
            "output is null");
      case Op::alltoallv:
        check_blocks("input", o_.in_blocks);
        return check_blocks("output", o_.out_blocks);
    }
  }

 private:
  /// Formats the message only on failure: this runs before every operation.
  template <class... Args>
  void require(bool good, fmt::format_string<const Args&...> problem, const Args&... args) const {
    if (!good) reject(formatted(problem, args...));
  }

  [[noreturn]] void reject(const std::string& problem) const {
    throw Error(Errc::invalid_argument,
                formatted("{} on rank {} of group {}: {}", name_of(o_.op), rank_, group_, problem),
                {rank_});
  }

  void check_reduction() const {
    require(supports(o_.dtype, o_.reduction.op), "{} is not defined for {}",
            name_of(o_.reduction.op), name_of(o_.dtype));
  }

  void check_root() const {
    if (o_.op == Op::recv && o_.root == kAnySource) return;
    if (!has_root(o_.op) && !is_point_to_point(o_.op)) return;
    const char* const argument = is_point_to_point(o_.op) ? "peer" : "root";
    require(o_.root >= 0 && o_.root < size_,
            "{} {} is not a rank of this group, which has ranks 0 to {}", argument, o_.root,
            size_ - 1);
  }

  /// Steps are counted in 32 bits; the smallest step of any algorithm moves chunk / size bytes.
  void check_size() const {
    if (is_point_to_point(o_.op)) return;
    std::size_t largest = o_.count;
    for (const ConstBlock& block : o_.in_blocks) largest = std::max(largest, block.count);
    for (const Block& block : o_.out_blocks) largest = std::max(largest, block.count);
    const std::size_t step =
        std::max<std::size_t>(1, chunk_bytes_ / static_cast<std::size_t>(size_));
    require(largest / step < (std::size_t{1} << 31) / size_of(o_.dtype),
            "{} elements are too many for CCL_CHUNK_BYTES={}", largest, chunk_bytes_);
  }

  void check_in() const { require(o_.count == 0 || o_.in != nullptr, "input is null"); }
  void check_out() const { require(o_.count == 0 || o_.out != nullptr, "output is null"); }

  template <class Blocks>
  void check_blocks(const char* what, const Blocks& blocks) const {
    require(blocks.size() == static_cast<std::size_t>(size_), "{} has {} blocks for {} ranks", what,
            blocks.size(), size_);
    for (std::size_t i = 0; i < blocks.size(); ++i)
      require(blocks[i].count == 0 || blocks[i].data != nullptr, "{} block {} is null", what, i);
  }

  const Operation& o_;
  int rank_;
  int size_;
  const std::string& group_;
  std::size_t chunk_bytes_;
};

}  // namespace

void validate(const Operation& operation, const ValidationLimits& limits) {
  Validator(operation, limits).run();
}

}  // namespace tccl
