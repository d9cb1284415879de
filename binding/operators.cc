// torch.ops.torch_ccl: collectives as operators of torch, for compiled programs and for programs
// that call a private operator instead of torch.distributed.
//
//   torch.ops.torch_ccl.all_reduce_(x, "sum", group.group_name)
//
// Each is complete when it returns. They work on CPU tensors of any group, also of another backend.
// Meta kernels give the shapes to torch.compile. The operators that return a new tensor are
// differentiable; those that write their argument refuse a tensor that requires grad.
// Thread safety: that of the backend. Python's GIL is not held.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <utility>
#include <vector>

namespace torch_ccl {
namespace {

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using Variables = torch::autograd::variable_list;
using Context = torch::autograd::AutogradContext;

GroupPtr group_named(const std::string& name) { return c10d::resolve_process_group(name); }

c10::intrusive_ptr<c10d::Backend> cpu_backend(const GroupPtr& group) {
  return group->getBackend(c10::DeviceType::CPU);
}

/// The names that torch's functional collectives use.
c10d::ReduceOp reduce_op_named(const std::string& name) {
  using Kind = c10d::ReduceOp::RedOpType;
  static const std::pair<const char*, Kind> known[] = {
      {"sum", Kind::SUM}, {"avg", Kind::AVG},   {"product", Kind::PRODUCT}, {"min", Kind::MIN},
      {"max", Kind::MAX}, {"band", Kind::BAND}, {"bor", Kind::BOR},         {"bxor", Kind::BXOR}};
  const auto* found = std::ranges::find(known, name, &std::pair<const char*, Kind>::first);
  TORCH_CHECK_VALUE(found != std::end(known),
                    "torch_ccl: reduce_op is sum, avg, product, min, max, ",
                    "band, bor or bxor, not ", name);
  return found->second;
}

bool is_linear(const std::string& reduce_op) { return reduce_op == "sum" || reduce_op == "avg"; }

std::string reduce_scatter_problem(c10::SymIntArrayRef sizes, int ranks) {
  return c10::str("torch_ccl: reduce_scatter divides the first dimension between ", ranks,
                  " ranks, but it has size ", sizes.empty() ? c10::SymInt(0) : sizes.front());
}

/// The sizes of one rank's part of the result of a reduce_scatter.
std::vector<c10::SymInt> scattered_sizes(const at::Tensor& input, int ranks) {
  auto sizes = input.sym_sizes().vec();
  TORCH_CHECK_VALUE(!sizes.empty() && sizes.front() % ranks == 0,
                    reduce_scatter_problem(input.sym_sizes(), ranks));
  sizes.front() = sizes.front() / ranks;
  return sizes;
}

std::vector<c10::SymInt> gathered_sizes(const at::Tensor& input, int ranks) {
  auto sizes = input.sym_sizes().vec();
  TORCH_CHECK_VALUE(!sizes.empty(), "torch_ccl: all_gather needs a tensor with a first dimension");
  sizes.front() = sizes.front() * ranks;
  return sizes;
}

at::Tensor empty_with(const std::vector<c10::SymInt>& sizes, const at::Tensor& like) {
  return at::empty_symint(sizes, like.options());
}

// ---- CPU

void all_reduce_in_place(const at::Tensor& tensor, const std::string& reduce_op,
                         const std::string& group_name) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = reduce_op_named(reduce_op);
  options.asyncOp = false;
  cpu_backend(group_named(group_name))->allreduce(tensors, options)->wait();
}

at::Tensor all_reduce(const at::Tensor& tensor, const std::string& reduce_op,
                      const std::string& group_name) {
  at::Tensor result = tensor.clone(at::MemoryFormat::Contiguous);
  all_reduce_in_place(result, reduce_op, group_name);
  return result;
}

at::Tensor all_gather(const at::Tensor& tensor, const std::string& group_name) {
  const GroupPtr group = group_named(group_name);
  at::Tensor input = tensor.contiguous();
  at::Tensor output = empty_with(gathered_sizes(input, group->getSize()), input);
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  cpu_backend(group)->_allgather_base(output, input, options)->wait();
  return output;
}

at::Tensor reduce_scatter(const at::Tensor& tensor, const std::string& reduce_op,
                          const std::string& group_name) {
  const GroupPtr group = group_named(group_name);
  at::Tensor input = tensor.contiguous();
  at::Tensor output = empty_with(scattered_sizes(input, group->getSize()), input);
  c10d::ReduceScatterOptions options;
  options.reduceOp = reduce_op_named(reduce_op);
  options.asyncOp = false;
  cpu_backend(group)->_reduce_scatter_base(output, input, options)->wait();
  return output;
}

/// `source` is a rank of the group.
void broadcast_in_place(const at::Tensor& tensor, int64_t source, const std::string& group_name) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::BroadcastOptions options;
  options.rootRank = source;
  options.asyncOp = false;
  cpu_backend(group_named(group_name))->broadcast(tensors, options)->wait();
}

// ---- shapes, for torch.compile

void all_reduce_in_place_meta(const at::Tensor& /*tensor*/, const std::string& reduce_op,
                              const std::string& /*group_name*/) {
  reduce_op_named(reduce_op);
}
at::Tensor all_reduce_meta(const at::Tensor& tensor, const std::string& reduce_op,
                           const std::string& /*group_name*/) {
  reduce_op_named(reduce_op);
  return at::empty_like(tensor, {}, at::MemoryFormat::Contiguous);
}
at::Tensor all_gather_meta(const at::Tensor& tensor, const std::string& group_name) {
  return empty_with(gathered_sizes(tensor, group_named(group_name)->getSize()), tensor);
}
at::Tensor reduce_scatter_meta(const at::Tensor& tensor, const std::string& reduce_op,
                               const std::string& group_name) {
  reduce_op_named(reduce_op);
  return empty_with(scattered_sizes(tensor, group_named(group_name)->getSize()), tensor);
}
void broadcast_in_place_meta(const at::Tensor& /*tensor*/, int64_t /*source*/,
                             const std::string& /*group_name*/) {}

// ---- autograd

using AllReduceHandle = at::Tensor(const at::Tensor&, const std::string&, const std::string&);
using AllReduceInPlaceHandle = void(const at::Tensor&, const std::string&, const std::string&);
using AllGatherHandle = at::Tensor(const at::Tensor&, const std::string&);
using BroadcastHandle = void(const at::Tensor&, int64_t, const std::string&);

template <class Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Calls of the operators through torch's dispatcher, below autograd or from a backward pass.
at::Tensor call_all_reduce(const at::Tensor& tensor, const std::string& reduce_op,
                           const std::string& group) {
  static const auto handle = find_operator<AllReduceHandle>("torch_ccl::all_reduce");
  return handle.call(tensor, reduce_op, group);
}
at::Tensor call_all_gather(const at::Tensor& tensor, const std::string& group) {
  static const auto handle = find_operator<AllGatherHandle>("torch_ccl::all_gather");
  return handle.call(tensor, group);
}
at::Tensor call_reduce_scatter(const at::Tensor& tensor, const std::string& reduce_op,
                               const std::string& group) {
  static const auto handle = find_operator<AllReduceHandle>("torch_ccl::reduce_scatter");
  return handle.call(tensor, reduce_op, group);
}
void call_all_reduce_in_place(const at::Tensor& tensor, const std::string& reduce_op,
                              const std::string& group) {
  static const auto handle = find_operator<AllReduceInPlaceHandle>("torch_ccl::all_reduce_");
  handle.call(tensor, reduce_op, group);
}
void call_broadcast_in_place(const at::Tensor& tensor, int64_t source, const std::string& group) {
  static const auto handle = find_operator<BroadcastHandle>("torch_ccl::broadcast_");
  handle.call(tensor, source, group);
}

void save(Context* context, const std::string& reduce_op, const std::string& group) {
  context->saved_data["reduce_op"] = reduce_op;
  context->saved_data["group"] = group;
}
std::string saved_group(Context* context) { return context->saved_data["group"].toStringRef(); }
/// Of a sum or an average; other reductions have no gradient here.
std::string saved_linear_op(Context* context) {
  std::string reduce_op = context->saved_data["reduce_op"].toStringRef();
  TORCH_CHECK_NOT_IMPLEMENTED(is_linear(reduce_op), "torch_ccl: reduce_op ", reduce_op,
                              " has no gradient, only sum and avg have");
  return reduce_op;
}

struct AllReduce : torch::autograd::Function<AllReduce> {
  static at::Tensor forward(Context* context, const at::Tensor& tensor,
                            const std::string& reduce_op, const std::string& group) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    save(context, reduce_op, group);
    return call_all_reduce(tensor, reduce_op, group);
  }
  static Variables backward(Context* context, const Variables& gradients) {
    return {call_all_reduce(gradients[0], saved_linear_op(context), saved_group(context)), {}, {}};
  }
};

struct AllGather : torch::autograd::Function<AllGather> {
  static at::Tensor forward(Context* context, const at::Tensor& tensor, const std::string& group) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    save(context, "sum", group);
    return call_all_gather(tensor, group);
  }
  static Variables backward(Context* context, const Variables& gradients) {
    return {call_reduce_scatter(gradients[0], "sum", saved_group(context)), {}};
  }
};

struct ReduceScatter : torch::autograd::Function<ReduceScatter> {
  static at::Tensor forward(Context* context, const at::Tensor& tensor,
                            const std::string& reduce_op, const std::string& group) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    save(context, reduce_op, group);
    return call_reduce_scatter(tensor, reduce_op, group);
  }
  static Variables backward(Context* context, const Variables& gradients) {
    const bool is_average = saved_linear_op(context) == "avg";
    const GroupPtr group = group_named(saved_group(context));
    const at::Tensor gradient = is_average ? gradients[0] / group->getSize() : gradients[0];
    return {call_all_gather(gradient, saved_group(context)), {}, {}};
  }
};

bool needs_graph(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.requires_grad();
}

at::Tensor all_reduce_autograd(const at::Tensor& tensor, const std::string& reduce_op,
                               const std::string& group) {
  if (needs_graph(tensor)) return AllReduce::apply(tensor, reduce_op, group);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_all_reduce(tensor, reduce_op, group);
}
at::Tensor all_gather_autograd(const at::Tensor& tensor, const std::string& group) {
  if (needs_graph(tensor)) return AllGather::apply(tensor, group);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_all_gather(tensor, group);
}
at::Tensor reduce_scatter_autograd(const at::Tensor& tensor, const std::string& reduce_op,
                                   const std::string& group) {
  if (needs_graph(tensor)) return ReduceScatter::apply(tensor, reduce_op, group);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_reduce_scatter(tensor, reduce_op, group);
}

/// For an operator that writes its argument: calls it below autograd, which counts the new version.
template <class Call>
void write_below_autograd(const at::Tensor& tensor, const char* name, const Call& call) {
  TORCH_CHECK(
      !needs_graph(tensor), "torch_ccl: ", name,
      " writes its argument, which requires grad; torch_ccl.all_reduce returns a new tensor");
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    call();
  }
  if (!tensor.is_inference()) torch::autograd::impl::bump_version(tensor);
}
void all_reduce_in_place_autograd(const at::Tensor& tensor, const std::string& reduce_op,
                                  const std::string& group) {
  write_below_autograd(tensor, "all_reduce_",
                       [&] { call_all_reduce_in_place(tensor, reduce_op, group); });
}
void broadcast_in_place_autograd(const at::Tensor& tensor, int64_t source,
                                 const std::string& group) {
  write_below_autograd(tensor, "broadcast_",
                       [&] { call_broadcast_in_place(tensor, source, group); });
}

}  // namespace

TORCH_LIBRARY(torch_ccl, library) {
  library.def("all_reduce_(Tensor(a!) tensor, str reduce_op, str group_name) -> ()");
  library.def("all_reduce(Tensor tensor, str reduce_op, str group_name) -> Tensor");
  library.def("all_gather(Tensor tensor, str group_name) -> Tensor");
  library.def("reduce_scatter(Tensor tensor, str reduce_op, str group_name) -> Tensor");
  library.def("broadcast_(Tensor(a!) tensor, int source, str group_name) -> ()");
}

TORCH_LIBRARY_IMPL(torch_ccl, CPU, library) {
  library.impl("all_reduce_", all_reduce_in_place);
  library.impl("all_reduce", all_reduce);
  library.impl("all_gather", all_gather);
  library.impl("reduce_scatter", reduce_scatter);
  library.impl("broadcast_", broadcast_in_place);
}

TORCH_LIBRARY_IMPL(torch_ccl, Meta, library) {
  library.impl("all_reduce_", all_reduce_in_place_meta);
  library.impl("all_reduce", all_reduce_meta);
  library.impl("all_gather", all_gather_meta);
  library.impl("reduce_scatter", reduce_scatter_meta);
  library.impl("broadcast_", broadcast_in_place_meta);
}

TORCH_LIBRARY_IMPL(torch_ccl, Autograd, library) {
  library.impl("all_reduce_", all_reduce_in_place_autograd);
  library.impl("all_reduce", all_reduce_autograd);
  library.impl("all_gather", all_gather_autograd);
  library.impl("reduce_scatter", reduce_scatter_autograd);
  library.impl("broadcast_", broadcast_in_place_autograd);
}

}  // namespace torch_ccl
