#include "sparse.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>

#include <algorithm>
#include <array>

#include "tccl/error.h"

namespace torch_ccl {
namespace {

constexpr std::size_t kMaxDims = 12;  // that fit a Description of fixed size

// What a rank says of its tensor before the entries are exchanged.
struct Description {
  int64_t entries = 0;
  int64_t dtype = 0;
  int64_t sparse_dims = 0;
  int64_t dims = 0;
  std::array<int64_t, kMaxDims> sizes{};

  [[nodiscard]] bool same_form(const Description& other) const {
    return dtype == other.dtype && sparse_dims == other.sparse_dims && dims == other.dims &&
           sizes == other.sizes;
  }
  [[nodiscard]] std::string text() const {
    return c10::str("a ", static_cast<at::ScalarType>(dtype), " tensor of shape ",
                    at::IntArrayRef(sizes.data(), static_cast<std::size_t>(dims)), " with ",
                    sparse_dims, " sparse dimensions");
  }
};

bool can_be_coalesced(at::ScalarType type) {
  if (at::isFloat8Type(type) || at::isBarebonesUnsignedType(type)) return false;
  return dtype_of(type).has_value();
}

class SparseSum {
 public:
  static constexpr std::uint32_t kOperations = 3;

  SparseSum(const GroupFacts& group, const at::Tensor& tensor)
      : group_(group), tensor_(tensor), everyone_(static_cast<std::size_t>(group.size)) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const at::Tensor own = tensor.coalesce();
    indices_ = own._indices().t().contiguous();  // an entry's indices stand together
    values_ = own._values().contiguous();
    own_.entries = own._nnz();
    own_.dtype = static_cast<int64_t>(tensor.scalar_type());
    own_.sparse_dims = tensor.sparse_dim();
    own_.dims = tensor.dim();
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), own_.sizes.begin());
  }

  void exchange(const tccl::OperationSequence::Run& run) {
    run(tccl::allgather(&own_, everyone_.data(), sizeof own_, tccl::DType::uint8));
    require_same_form();
    gather(run, indices_, all_indices_);
    gather(run, values_, all_values_);
  }

  void finish() const {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const bool is_short = at::isReducedFloatingType(values_.scalar_type());
    at::Tensor values = at::cat(all_values_, 0);
    if (is_short) values = values.to(at::kFloat);
    at::Tensor sum =
        at::sparse_coo_tensor(at::cat(all_indices_, 0).t(), values, tensor_.sizes()).coalesce();
    if (is_short) sum = sum.to(tensor_.scalar_type());
    tensor_.copy_(sum);
  }

 private:
  void require_same_form() const {
    for (std::size_t rank = 0; rank < everyone_.size(); ++rank) {
      if (everyone_[rank].same_form(everyone_.front())) continue;
      throw tccl::Error(
          tccl::Errc::mismatch,
          c10::str("ranks of group ", group_.name,
                   " disagree on a sparse allreduce: ", "rank 0 passed ", everyone_.front().text(),
                   ", rank ", rank, " passed ", everyone_[rank].text()),
          {0, static_cast<int>(rank)});
    }
  }

  // Rows of `own`, as many as each rank has entries.
  void gather(const tccl::OperationSequence::Run& run, const at::Tensor& own, Tensors& all) const {
    std::vector<tccl::Block> blocks;
    for (const Description& description : everyone_) {
      std::vector<int64_t> sizes = own.sizes().vec();
      sizes.front() = description.entries;
      const at::Tensor& room = all.emplace_back(at::empty(sizes, own.options()));
      blocks.push_back({room.mutable_data_ptr(), count_of(room)});
    }
    run(tccl::allgatherv(own.const_data_ptr(), blocks, tccl_dtype(own)));
  }

  const GroupFacts& group_;
  const at::Tensor tensor_;
  at::Tensor indices_;
  at::Tensor values_;
  Description own_;
  std::vector<Description> everyone_;
  Tensors all_indices_;
  Tensors all_values_;
};

}  // namespace

void add_sparse_allreduce(Call& call, const GroupFacts& group, const at::Tensor& tensor,
                          const c10d::ReduceOp& op) {
  call.require(tensor.defined(), "`tensor` is an undefined tensor");
  call.require(tensor.layout() == at::kSparse, "`tensor` must have the layout ", at::kSparse,
               ", but its layout is ", tensor.layout());
  call.require(tensor.device().is_cpu(), "`tensor` must be on the CPU, but it is on ",
               tensor.device());
  call.require(can_be_coalesced(tensor.scalar_type()), "`tensor` has the dtype ",
               tensor.scalar_type(), ", of which torch cannot add sparse tensors");
  call.require(op.op_ == c10d::ReduceOp::SUM, "`op` must be SUM for a sparse tensor");
  call.require(static_cast<std::size_t>(tensor.dim()) <= kMaxDims, "`tensor` has ", tensor.dim(),
               " dimensions; a sparse one may have ", kMaxDims);
  const auto sum = std::make_shared<SparseSum>(group, tensor);
  call.set_body(
      SparseSum::kOperations,
      [sum](const tccl::OperationSequence::Run& run) { sum->exchange(run); },
      [sum] { sum->finish(); });
}

}  // namespace torch_ccl
