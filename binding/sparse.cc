#include "sparse.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>

#include <algorithm>
#include <array>

#include "tccl/error.h"

namespace torch_ccl {
namespace {

constexpr std::size_t kMaxDims = 12;  // so that SparseHeader has a fixed size

// What each rank tells the others about its tensor before the entries are exchanged.
struct SparseHeader {
  int64_t nnz = 0;
  int64_t dtype = 0;
  int64_t sparse_dims = 0;
  int64_t dims = 0;
  std::array<int64_t, kMaxDims> sizes{};

  [[nodiscard]] bool matches(const SparseHeader& other) const {
    return dtype == other.dtype && sparse_dims == other.sparse_dims && dims == other.dims &&
           sizes == other.sizes;
  }
  [[nodiscard]] std::string text() const {
    return c10::str("a ", static_cast<at::ScalarType>(dtype), " tensor of shape ",
                    at::IntArrayRef(sizes.data(), static_cast<std::size_t>(dims)), " with ",
                    sparse_dims, " sparse dimensions");
  }
};

bool torch_can_coalesce(at::ScalarType type) {
  if (at::isFloat8Type(type) || at::isBarebonesUnsignedType(type)) return false;
  return dtype_of(type).has_value();
}

class SparseAllreduce {
 public:
  static constexpr std::uint32_t kOperations = 3;

  SparseAllreduce(const GroupInfo& group, const at::Tensor& tensor)
      : group_(group), tensor_(tensor), headers_(static_cast<std::size_t>(group.size)) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const at::Tensor coalesced = tensor.coalesce();
    indices_ = coalesced._indices().t().contiguous();  // one row per entry
    values_ = coalesced._values().contiguous();
    own_header_.nnz = coalesced._nnz();
    own_header_.dtype = static_cast<int64_t>(tensor.scalar_type());
    own_header_.sparse_dims = tensor.sparse_dim();
    own_header_.dims = tensor.dim();
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), own_header_.sizes.begin());
  }

  void exchange(const tccl::OperationList::Run& run) {
    run(tccl::allgather(&own_header_, headers_.data(), sizeof own_header_, tccl::DType::uint8));
    check_headers_match();
    gather_rows(run, indices_, all_indices_);
    gather_rows(run, values_, all_values_);
  }

  void write_sum() const {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const bool sum_in_float = at::isReducedFloatingType(values_.scalar_type());
    at::Tensor values = at::cat(all_values_, 0);
    if (sum_in_float) values = values.to(at::kFloat);
    at::Tensor sum =
        at::sparse_coo_tensor(at::cat(all_indices_, 0).t(), values, tensor_.sizes()).coalesce();
    if (sum_in_float) sum = sum.to(tensor_.scalar_type());
    tensor_.copy_(sum);
  }

 private:
  void check_headers_match() const {
    for (std::size_t rank = 0; rank < headers_.size(); ++rank) {
      if (headers_[rank].matches(headers_.front())) continue;
      throw tccl::Error(
          tccl::Errc::mismatch,
          c10::str("ranks of group ", group_.name,
                   " disagree on a sparse allreduce: ", "rank 0 passed ", headers_.front().text(),
                   ", rank ", rank, " passed ", headers_[rank].text()),
          {0, static_cast<int>(rank)});
    }
  }

  // Each rank contributes one row per nonzero entry.
  void gather_rows(const tccl::OperationList::Run& run, const at::Tensor& own, Tensors& all) const {
    std::vector<tccl::Block> blocks;
    for (const SparseHeader& header : headers_) {
      std::vector<int64_t> sizes = own.sizes().vec();
      sizes.front() = header.nnz;
      const at::Tensor& received = all.emplace_back(at::empty(sizes, own.options()));
      blocks.push_back({received.mutable_data_ptr(), count_of(received)});
    }
    run(tccl::allgatherv(own.const_data_ptr(), blocks, tccl_dtype(own)));
  }

  const GroupInfo& group_;
  const at::Tensor tensor_;
  at::Tensor indices_;
  at::Tensor values_;
  SparseHeader own_header_;
  std::vector<SparseHeader> headers_;  // of all ranks
  Tensors all_indices_;
  Tensors all_values_;
};

}  // namespace

void add_sparse_allreduce(CollectiveRequest& request, const at::Tensor& tensor,
                          const c10d::ReduceOp& op) {
  request.require(tensor.defined(), "`tensor` is an undefined tensor");
  request.require(tensor.layout() == at::kSparse, "`tensor` must have the layout ", at::kSparse,
                  ", but its layout is ", tensor.layout());
  request.require(tensor.device().is_cpu(), "`tensor` must be on the CPU, but it is on ",
                  tensor.device());
  request.require(torch_can_coalesce(tensor.scalar_type()), "`tensor` has dtype ",
                  tensor.scalar_type(), ", for which torch cannot add sparse tensors");
  request.require(op.op_ == c10d::ReduceOp::SUM, "`op` must be SUM for a sparse tensor");
  request.require(static_cast<std::size_t>(tensor.dim()) <= kMaxDims, "`tensor` has ", tensor.dim(),
                  " dimensions, but a sparse tensor may have at most ", kMaxDims);
  const auto allreduce = std::make_shared<SparseAllreduce>(request.group(), tensor);
  request.set_body(
      SparseAllreduce::kOperations,
      [allreduce](const tccl::OperationList::Run& run) { allreduce->exchange(run); },
      [allreduce] { allreduce->write_sum(); });
  request.add_tensors(tensor, tensor);
}

}  // namespace torch_ccl
