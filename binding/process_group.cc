#include "process_group.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <numeric>

#include "context.h"
#include "errors.h"
#include "gil.h"
#include "monitored_barrier.h"
#include "sparse.h"
#include "work.h"

namespace torch_ccl {
namespace {

using c10d::OpType;

// The titles are those of torch's own backends, where its tests look for them.
constexpr Method kAllreduce{OpType::ALLREDUCE, "allreduce", "all_reduce"};
constexpr Method kAllreduceCoalesced{OpType::ALLREDUCE_COALESCED, "allreduce_coalesced",
                                     "all_reduce"};
constexpr Method kAllreduceSparse{OpType::_ALLREDUCE_SPARSE, "allreduce_sparse",
                                  "sparse_all_reduce"};
constexpr Method kBroadcast{OpType::BROADCAST, "broadcast", "broadcast"};
constexpr Method kReduce{OpType::REDUCE, "reduce", "reduce"};
constexpr Method kAllgather{OpType::ALLGATHER, "allgather", "all_gather"};
constexpr Method kAllgatherBase{OpType::_ALLGATHER_BASE, "_allgather_base", "_all_gather_base"};
constexpr Method kAllgatherCoalesced{OpType::ALLGATHER_COALESCED, "allgather_coalesced",
                                     "all_gather"};
constexpr Method kAllgatherIntoTensorCoalesced{
    OpType::ALLGATHER_COALESCED, "allgather_into_tensor_coalesced", "_all_gather_base"};
constexpr Method kGather{OpType::GATHER, "gather", "gather"};
constexpr Method kScatter{OpType::SCATTER, "scatter", "scatter"};
constexpr Method kReduceScatter{OpType::REDUCE_SCATTER, "reduce_scatter", "reduce_scatter"};
constexpr Method kReduceScatterBase{OpType::_REDUCE_SCATTER_BASE, "_reduce_scatter_base",
                                    "_reduce_scatter_base"};
constexpr Method kReduceScatterTensorCoalesced{OpType::REDUCE_SCATTER_TENSOR_COALESCED,
                                               "reduce_scatter_tensor_coalesced",
                                               "_reduce_scatter_base"};
constexpr Method kAlltoallBase{OpType::ALLTOALL_BASE, "alltoall_base", "all_to_all"};
constexpr Method kAlltoall{OpType::ALLTOALL, "alltoall", "all_to_all"};
constexpr Method kBarrier{OpType::BARRIER, "barrier", "barrier"};
constexpr Method kSend{OpType::SEND, "send", "send"};
constexpr Method kRecv{OpType::RECV, "recv", "recv"};
constexpr Method kRecvAnysource{OpType::RECVANYSOURCE, "recvAnysource", "recvAnySource"};

c10::intrusive_ptr<ProcessGroupCCL::Options> own_options(
    const c10::intrusive_ptr<c10d::Backend::Options>& given, std::chrono::milliseconds timeout) {
  auto options =
      c10::make_intrusive<ProcessGroupCCL::Options>(timeout, given ? given->backend : kBackendName);
  if (!given) return options;
  options->timeout = given->timeout;
  options->group_name = given->group_name;
  options->group_desc = given->group_desc;
  options->global_ranks_in_group = given->global_ranks_in_group;
  return options;
}

std::atomic<std::uint64_t> operations_of_process{0};  // relaxed: only a number to look at

}  // namespace

ProcessGroupCCL::ProcessGroupCCL(const StorePtr& store, int rank, int size,
                                 c10::intrusive_ptr<Options> options, std::string name)
    : Backend(rank, size),
      options_(std::move(options)),
      facts_{rank, size, std::move(name), options_->backend},
      communicator_(make_communicator(store, rank, size,
                                      {.name = facts_.name, .timeout = options_->timeout})),
      staging_bytes_(context()->staging_bytes()),
      timeout_(options_->timeout) {
  init();
}

// Python may drop the last reference, and it does so with the GIL held; but close() waits for
// operations whose callbacks may need the GIL.
ProcessGroupCCL::~ProcessGroupCCL() {
  const WithoutGil without_gil;
  communicator_->close();
}

void ProcessGroupCCL::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  if (native_) native_->setTimeout(timeout);
  timeout_.store(timeout, std::memory_order_relaxed);
}

std::uint64_t ProcessGroupCCL::operation_count() noexcept {
  return operations_of_process.load(std::memory_order_relaxed);
}

std::chrono::milliseconds ProcessGroupCCL::effective(std::chrono::milliseconds timeout) const {
  return timeout.count() > 0 ? timeout : timeout_.load(std::memory_order_relaxed);
}

// ---- how a call is run

namespace {
// The usual case needs no memory: `arguments` are shared only if they have to outlive this call.
void run_to_its_end(tccl::Communicator& communicator, Call& arguments,
                    std::chrono::milliseconds timeout) {
  if (const tccl::Operation* operation = arguments.single();
      operation && communicator.try_run(*operation, timeout))
    return void(arguments.try_finish());
  const auto call = std::make_shared<const Call>(std::move(arguments));
  if (const tccl::Operation* operation = call->single()) {
    communicator.run(*operation, {.timeout = timeout, .keepalive = call});
  } else {
    communicator.run(Call::sequence(call), {.timeout = timeout, .keepalive = call});
  }
  call->try_finish();
}

std::shared_ptr<tccl::Work> start(tccl::Communicator& communicator,
                                  const std::shared_ptr<const Call>& call,
                                  std::chrono::milliseconds timeout) {
  if (const tccl::Operation* operation = call->single())
    return communicator.start(*operation, {.timeout = timeout, .keepalive = call});
  return communicator.start(Call::sequence(call), {.timeout = timeout, .keepalive = call});
}

}  // namespace

ProcessGroupCCL::WorkPtr ProcessGroupCCL::launch(Call arguments, std::chrono::milliseconds timeout,
                                                 bool asynchronous) {
  if (arguments.is_staged()) prepare_staging(arguments, effective(timeout));
  arguments.accept();
  operations_of_process.fetch_add(1, std::memory_order_relaxed);
  at::RecordFunction row(at::RecordScope::FUNCTION);
  if (row.isActive()) {
    const std::vector<c10::IValue> inputs(arguments.inputs().begin(), arguments.inputs().end());
    row.before(c10::str("pg::", arguments.method().name), &inputs);
  }
  auto work = c10::make_intrusive<WorkCCL>(arguments, communicator_->next_sequence(), communicator_,
                                           ledger_);
  const bool in_batch = facts_.batches.is_open();
  try {
    if (arguments.is_empty()) {
      work->complete_unseen();
    } else if (asynchronous || in_batch) {
      const auto call = std::make_shared<const Call>(std::move(arguments));
      const auto operation = start(*communicator_, call, effective(timeout));
      WorkCCL::follow(work, operation, call);
    } else {
      run_to_its_end(*communicator_, arguments, effective(timeout));
      work->complete_unseen();
    }
  } catch (const tccl::Error& error) {
    facts_.batches.abandon();
    if (error.code() != tccl::Errc::invalid_argument)  // else it has not happened
      work->complete(as_torch(std::current_exception()));
    throw_as_torch(error);
  }
  if (in_batch) facts_.batches.add(work);
  return work;
}

void ProcessGroupCCL::prepare_staging(Call& call, std::chrono::milliseconds timeout) const {
  // Weak, because calls may outlive the group. A collective is part of the group's close(), which
  // waits for it; a receive is not. Signals are looked for less often: that takes the GIL.
  auto stop_if_asked = [group = std::weak_ptr(communicator_), may_outlive = call.may_finish_late(),
                        operation = c10::str(call.method().name, " of group ", facts_.name),
                        next_poll = Clock::now() + kInterruptPeriod](bool needs_others) mutable {
    const auto communicator = group.lock();
    if (!communicator || (may_outlive && communicator->is_closed()))
      throw tccl::Error(tccl::Errc::aborted, "the group was closed meanwhile");
    if (needs_others) {
      communicator->check_peers(operation);
    } else if (const std::exception_ptr reason = communicator->error()) {
      std::rethrow_exception(reason);
    }
    if (Clock::now() < next_poll) return;
    poll_interrupt();
    next_poll = Clock::now() + kInterruptPeriod;
  };
  try {
    call.prepare_staging(staging_bytes_, timeout, std::move(stop_if_asked));
  } catch (const tccl::Error& error) {
    throw_as_torch(error);
  }
}

// ---- tensors of a device that has a backend of its own

void ProcessGroupCCL::set_native(at::DeviceType device, c10::intrusive_ptr<c10d::Backend> backend) {
  native_device_ = device;
  native_ = std::move(backend);
}

c10d::Backend* ProcessGroupCCL::native_for(const at::Tensor& tensor) const {
  return native_ && tensor.defined() && tensor.device().type() == native_device_ ? native_.get()
                                                                                 : nullptr;
}

c10d::Backend* ProcessGroupCCL::native_for(const Tensors& tensors) const {
  return tensors.empty() ? nullptr : native_for(tensors.front());
}

template <class NativeCall>
ProcessGroupCCL::WorkPtr ProcessGroupCCL::in_batch(const NativeCall& call) {
  try {
    WorkPtr work = call();
    if (facts_.batches.is_open()) facts_.batches.add(work);
    return work;
  } catch (...) {
    facts_.batches.abandon();
    throw;
  }
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::launch_point_to_point(Call call) {
  return launch(std::move(call), c10d::kUnsetTimeout, /*asynchronous=*/true);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::endCoalescing() {
  return c10::make_intrusive<WorkBatch>(facts_.batches.take());
}

// ---- reductions

void ProcessGroupCCL::add_allreduce(Call& call, const at::Tensor& tensor, const c10d::ReduceOp& op,
                                    tccl::WireFormat format) {
  call.check_output(tensor, "tensor");
  const tccl::Reduction reduction = call.reduction(op, tensor);
  void* data = call.writable(tensor, Call::with_contents);
  tccl::Operation operation =
      tccl::allreduce(data, data, count_of(tensor), tccl_dtype(tensor), reduction);
  operation.wire_format = format;
  call.add(operation);
  call.set_tensors(tensor, tensor);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::allreduce(Tensors& tensors,
                                                    const c10d::AllreduceOptions& options) {
  if (auto* native = native_for(tensors))
    return in_batch([&] { return native->allreduce(tensors, options); });
  Call call(kAllreduce, facts_);
  const at::Tensor& tensor = call.only(tensors, "tensors");
  if (tensor.defined() && tensor.layout() == at::kSparse) return allreduce_sparse(tensors, options);
  add_allreduce(call, tensor, options.reduceOp);
  return launch(std::move(call), options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::allreduce_packed(Tensors& tensors,
                                                           const c10d::AllreduceOptions& options,
                                                           tccl::WireFormat format) {
  if (auto* native = native_for(tensors))
    return in_batch([&] { return native->allreduce(tensors, options); });
  Call call(kAllreduce, facts_);
  add_allreduce(call, call.only(tensors, "tensors"), options.reduceOp, format);
  return launch(std::move(call), options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  if (auto* native = native_for(tensors))
    return in_batch([&] { return native->allreduce_coalesced(tensors, options); });
  Call call(kAllreduceCoalesced, facts_);
  for (const at::Tensor& tensor : tensors) add_allreduce(call, tensor, options.reduceOp);
  return launch(std::move(call), options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::allreduce_sparse(Tensors& tensors,
                                                           const c10d::AllreduceOptions& options) {
  if (auto* native = native_for(tensors))
    return in_batch([&] { return native->allreduce_sparse(tensors, options); });
  Call call(kAllreduceSparse, facts_);
  const at::Tensor& tensor = call.only(tensors, "tensors");
  add_sparse_allreduce(call, facts_, tensor, options.reduceOp);
  call.set_tensors(tensor, tensor);
  return launch(std::move(call), options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::reduce(Tensors& tensors,
                                                 const c10d::ReduceOptions& options) {
  if (auto* native = native_for(tensors))
    return in_batch([&] { return native->reduce(tensors, options); });
  Call call(kReduce, facts_);
  const at::Tensor& tensor = call.only(tensors, "tensors");
  call.check_rank(options.rootRank, "root");
  const auto root = static_cast<int>(options.rootRank);
  const bool is_root = root == getRank();
  is_root ? call.check_output(tensor, "tensor") : call.check_input(tensor, "tensor");
  const tccl::Reduction reduction = call.reduction(options.reduceOp, tensor);
  void* out = is_root ? call.writable(tensor, Call::with_contents) : nullptr;
  const void* in = is_root ? out : call.readable(tensor);
  call.add(tccl::reduce(in, out, count_of(tensor), tccl_dtype(tensor), reduction, root));
  call.set_tensors(tensors, tensors);
  return launch(std::move(call), options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  if (auto* native = native_for(outputs))
    return in_batch([&] { return native->reduce_scatter(outputs, inputs, options); });
  Call call(kReduceScatter, facts_);
  const at::Tensor& output = call.only(outputs, "output");
  const Tensors& input = call.only(inputs, "input_list");
  call.check_output(output, "output");
  call.check_list_length(input, "input_list");
  for (const at::Tensor& tensor : input) {
    call.check_input(tensor, "input_list");
    call.check_same_dtype(tensor, "input_list", output, "output");
  }
  const at::Tensor& own = input[static_cast<std::size_t>(getRank())];
  call.require(own.numel() == output.numel(), "entry ", getRank(), " of `input_list`, which ends ",
               "up in this rank's own output, has ", own.numel(), " elements, but `output` has ",
               output.numel());
  const tccl::Reduction reduction = call.reduction(options.reduceOp, output);
  void* out = call.writable(output, Call::without_contents);
  std::vector<tccl::ConstBlock> blocks;
  for (const at::Tensor& tensor : input) blocks.push_back(call.input_block(tensor));
  call.add(tccl::reduce_scatterv(call.keep(std::move(blocks)), out, tccl_dtype(output), reduction));
  call.set_tensors(input, outputs);
  return launch(std::move(call), options);
}

void ProcessGroupCCL::add_reduce_scatter(Call& call, const at::Tensor& output,
                                         const at::Tensor& input, const c10d::ReduceOp& op) {
  call.check_input(input, "input");
  call.check_output(output, "output");
  call.check_same_dtype(output, "output", input, "input");
  call.require(input.numel() == output.numel() * getSize(), "`input` has ", input.numel(),
               " elements, but ", getSize(), " ranks times ", output.numel(),
               " elements of `output` are ", output.numel() * getSize());
  const tccl::Reduction reduction = call.reduction(op, input);
  void* out = call.writable(output, Call::without_contents);
  const void* in = call.readable_apart(input);
  call.add(tccl::reduce_scatter(in, out, count_of(output), tccl_dtype(output), reduction));
  call.set_tensors(input, output);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  if (auto* native = native_for(output))
    return in_batch([&] { return native->_reduce_scatter_base(output, input, options); });
  Call call(kReduceScatterBase, facts_);
  add_reduce_scatter(call, output, input, options.reduceOp);
  return launch(std::move(call), options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  if (auto* native = native_for(outputs))
    return in_batch(
        [&] { return native->reduce_scatter_tensor_coalesced(outputs, inputs, options); });
  Call call(kReduceScatterTensorCoalesced, facts_);
  call.check_same_length(outputs, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    add_reduce_scatter(call, outputs[i], inputs[i], options.reduceOp);
  return launch(std::move(call), options);
}

// ---- copies

ProcessGroupCCL::WorkPtr ProcessGroupCCL::broadcast(Tensors& tensors,
                                                    const c10d::BroadcastOptions& options) {
  if (auto* native = native_for(tensors))
    return in_batch([&] { return native->broadcast(tensors, options); });
  Call call(kBroadcast, facts_);
  const at::Tensor& tensor = call.only(tensors, "tensors");
  call.check_rank(options.rootRank, "root");
  const auto root = static_cast<int>(options.rootRank);
  const bool is_root = root == getRank();
  is_root ? call.check_input(tensor, "tensor") : call.check_output(tensor, "tensor");
  void* data = is_root ? const_cast<void*>(call.readable(tensor))  // the root's is only read
                       : call.writable(tensor, Call::without_contents);
  call.add(tccl::broadcast(data, count_of(tensor), tccl_dtype(tensor), root));
  call.set_tensors(tensors, tensors);
  return launch(std::move(call), options);
}

void ProcessGroupCCL::add_allgatherv(Call& call, const Tensors& outputs, const at::Tensor& input) {
  call.check_input(input, "input");
  call.check_list_length(outputs, "output_list");
  for (const at::Tensor& tensor : outputs) {
    call.check_output(tensor, "output_list");
    call.check_same_dtype(tensor, "output_list", input, "input");
  }
  const at::Tensor& own = outputs[static_cast<std::size_t>(getRank())];
  call.require(own.numel() == input.numel(), "entry ", getRank(), " of `output_list`, which is ",
               "for this rank's own input, has ", own.numel(), " elements, but `input` has ",
               input.numel());
  std::vector<tccl::Block> blocks;
  for (const at::Tensor& tensor : outputs) blocks.push_back(call.output_block(tensor));
  const void* in = call.readable_apart(input, own.const_data_ptr());
  call.add(tccl::allgatherv(in, call.keep(std::move(blocks)), tccl_dtype(input)));
  call.set_tensors(input, outputs);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& options) {
  if (auto* native = native_for(inputs))
    return in_batch([&] { return native->allgather(outputs, inputs, options); });
  Call call(kAllgather, facts_);
  const at::Tensor& input = call.only(inputs, "input");
  add_allgatherv(call, call.only(outputs, "output_list"), input);
  return launch(std::move(call), options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::allgather_coalesced(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  if (auto* native = native_for(inputs))
    return in_batch([&] { return native->allgather_coalesced(outputs, inputs, options); });
  Call call(kAllgatherCoalesced, facts_);
  call.require(outputs.size() == static_cast<std::size_t>(getSize()), "`output_lists` must hold ",
               "one list per rank, ", getSize(), " in all, but it holds ", outputs.size());
  for (const Tensors& list : outputs) call.check_same_length(list, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors of_each_rank;
    for (const Tensors& list : outputs) of_each_rank.push_back(list[i]);
    add_allgatherv(call, of_each_rank, inputs[i]);
  }
  return launch(std::move(call), options);
}

void ProcessGroupCCL::add_allgather(Call& call, const at::Tensor& output, const at::Tensor& input) {
  call.check_input(input, "input");
  call.check_output(output, "output");
  call.check_same_dtype(output, "output", input, "input");
  call.require(output.numel() == input.numel() * getSize(), "`output` has ", output.numel(),
               " elements, but ", getSize(), " ranks times ", input.numel(),
               " elements of `input` are ", input.numel() * getSize());
  void* out = call.writable(output, Call::without_contents);
  const auto* whole = static_cast<const char*>(output.const_data_ptr());
  const void* in = call.readable_apart(input, whole + input.nbytes() * getRank());
  call.add(tccl::allgather(in, out, count_of(input), tccl_dtype(input)));
  call.set_tensors(input, output);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                          const c10d::AllgatherOptions& options) {
  if (auto* native = native_for(input))
    return in_batch([&] { return native->_allgather_base(output, input, options); });
  Call call(kAllgatherBase, facts_);
  add_allgather(call, output, input);
  return launch(std::move(call), options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  if (auto* native = native_for(inputs))
    return in_batch(
        [&] { return native->allgather_into_tensor_coalesced(outputs, inputs, options); });
  Call call(kAllgatherIntoTensorCoalesced, facts_);
  call.check_same_length(outputs, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) add_allgather(call, outputs[i], inputs[i]);
  return launch(std::move(call), options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::GatherOptions& options) {
  if (auto* native = native_for(inputs))
    return in_batch([&] { return native->gather(outputs, inputs, options); });
  Call call(kGather, facts_);
  const at::Tensor& input = call.only(inputs, "input");
  call.check_input(input, "input");
  call.check_rank(options.rootRank, "root");
  const auto root = static_cast<int>(options.rootRank);
  std::vector<tccl::Block> blocks;
  Tensors results;
  if (root == getRank()) {
    results = call.only(outputs, "gather_list");
    call.check_list_length(results, "gather_list");
    for (const at::Tensor& tensor : results) {
      call.check_output(tensor, "gather_list");
      call.check_same_dtype(tensor, "gather_list", input, "input");
      blocks.push_back(call.output_block(tensor));
    }
  } else {
    call.require(outputs.empty(), "`gather_list` must be given on the root alone, rank ", root);
  }
  const tccl::ConstBlock in = call.input_block(input);
  call.add(tccl::gatherv(in, call.keep(std::move(blocks)), tccl_dtype(input), root));
  call.set_tensors(inputs, results);
  return launch(std::move(call), options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const c10d::ScatterOptions& options) {
  if (auto* native = native_for(outputs))
    return in_batch([&] { return native->scatter(outputs, inputs, options); });
  Call call(kScatter, facts_);
  const at::Tensor& output = call.only(outputs, "output");
  call.check_output(output, "output");
  call.check_rank(options.rootRank, "root");
  const auto root = static_cast<int>(options.rootRank);
  const tccl::Block out = call.output_block(output);
  std::vector<tccl::ConstBlock> blocks;
  Tensors sources;
  if (root == getRank()) {
    sources = call.only(inputs, "scatter_list");
    call.check_list_length(sources, "scatter_list");
    for (const at::Tensor& tensor : sources) {
      call.check_input(tensor, "scatter_list");
      call.check_same_dtype(tensor, "scatter_list", output, "output");
      blocks.push_back(call.input_block(tensor));
    }
  } else {
    call.require(inputs.empty(), "`scatter_list` must be given on the root alone, rank ", root);
  }
  call.add(tccl::scatterv(call.keep(std::move(blocks)), out, tccl_dtype(output), root));
  call.set_tensors(sources, outputs);
  return launch(std::move(call), options);
}

// ---- all to all: always the uneven form, because some ranks may name their splits and others not

namespace {

// How many elements go to or come from each rank.
std::vector<int64_t> split_counts(const Call& call, const at::Tensor& tensor,
                                  const std::vector<int64_t>& splits, int size,
                                  const char* argument) {
  if (splits.empty()) {
    call.require(tensor.numel() % size == 0, "`", argument, "` has ", tensor.numel(),
                 " elements, which ", size, " ranks cannot share equally; pass its splits");
    return std::vector<int64_t>(static_cast<std::size_t>(size), tensor.numel() / size);
  }
  call.require(splits.size() == static_cast<std::size_t>(size), "the splits of `", argument,
               "` must be one per rank, ", size, " in all, but they are ", splits.size());
  call.require(tensor.dim() > 0, "`", argument, "` has no dimension that could be split");
  const int64_t rows = tensor.size(0);
  std::vector<int64_t> counts = splits;
  call.require(
      std::ranges::all_of(splits, [&](int64_t split) { return split >= 0 && split <= rows; }),
      "a split of `", argument, "` is negative or more than its ", rows, " rows");
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  call.require(sum == rows, "the splits of `", argument, "` add up to ", sum, ", but it has ", rows,
               " rows");
  for (int64_t& count : counts) count *= rows == 0 ? 0 : tensor.numel() / rows;
  return counts;
}

template <class Block, class Pointer>
std::vector<Block> blocks_at(Pointer* data, const std::vector<int64_t>& counts,
                             std::size_t element_bytes) {
  std::vector<Block> blocks;
  for (const int64_t count : counts) {
    blocks.push_back({data, static_cast<std::size_t>(count)});
    data += static_cast<std::size_t>(count) * element_bytes;
  }
  return blocks;
}

}  // namespace

ProcessGroupCCL::WorkPtr ProcessGroupCCL::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                        std::vector<int64_t>& output_splits,
                                                        std::vector<int64_t>& input_splits,
                                                        const c10d::AllToAllOptions& options) {
  if (auto* native = native_for(input))
    return in_batch(
        [&] { return native->alltoall_base(output, input, output_splits, input_splits, options); });
  Call call(kAlltoallBase, facts_);
  call.check_input(input, "input");
  call.check_output(output, "output");
  call.check_same_dtype(output, "output", input, "input");
  const auto out_counts = split_counts(call, output, output_splits, getSize(), "output");
  const auto in_counts = split_counts(call, input, input_splits, getSize(), "input");
  auto* out = static_cast<char*>(call.writable(output, Call::without_contents));
  const auto* in = static_cast<const char*>(call.readable_apart(input));
  const std::size_t element_bytes = input.element_size();
  call.add(tccl::alltoallv(call.keep(blocks_at<tccl::ConstBlock>(in, in_counts, element_bytes)),
                           call.keep(blocks_at<tccl::Block>(out, out_counts, element_bytes)),
                           tccl_dtype(input)));
  call.set_tensors(input, output);
  return launch(std::move(call), options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::alltoall(Tensors& outputs, Tensors& inputs,
                                                   const c10d::AllToAllOptions& options) {
  if (auto* native = native_for(inputs))
    return in_batch([&] { return native->alltoall(outputs, inputs, options); });
  Call call(kAlltoall, facts_);
  call.check_list_length(outputs, "output_list");
  call.check_list_length(inputs, "input_list");
  std::vector<tccl::Block> out;
  for (const at::Tensor& tensor : outputs) {
    call.check_output(tensor, "output_list");
    call.check_same_dtype(tensor, "output_list", outputs.front(), "output_list");
    out.push_back(call.output_block(tensor));
  }
  std::vector<tccl::ConstBlock> in;
  for (const at::Tensor& tensor : inputs) {
    call.check_input(tensor, "input_list");
    call.check_same_dtype(tensor, "input_list", outputs.front(), "output_list");
    in.push_back(call.input_block(tensor));
  }
  call.add(tccl::alltoallv(call.keep(std::move(in)), call.keep(std::move(out)),
                           tccl_dtype(outputs.front())));
  call.set_tensors(inputs, outputs);
  return launch(std::move(call), options);
}

// ---- barriers

ProcessGroupCCL::WorkPtr ProcessGroupCCL::barrier(const c10d::BarrierOptions& options) {
  Call call(kBarrier, facts_);
  call.add(tccl::barrier());
  return launch(std::move(call), options);
}

void ProcessGroupCCL::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  // Unlike elsewhere, zero is a timeout of its own here: who is not there already has not come.
  const auto timeout =
      options.timeout == c10d::kUnsetTimeout ? effective(options.timeout) : options.timeout;
  operations_of_process.fetch_add(1, std::memory_order_relaxed);
  const auto number = monitored_barriers_.fetch_add(1, std::memory_order_relaxed);
  monitored_barrier(*communicator_, number, timeout, wait_all_ranks);
}

// ---- point to point

ProcessGroupCCL::WorkPtr ProcessGroupCCL::send(Tensors& tensors, int destination, int tag) {
  if (auto* native = native_for(tensors))
    return in_batch([&] { return native->send(tensors, destination, tag); });
  Call call(kSend, facts_);
  const at::Tensor& tensor = call.only(tensors, "tensors");
  call.check_input(tensor, "tensor");
  call.check_rank(destination, "destination");
  call.require(tag >= 0, "`tag` must not be negative, but it is ", tag);
  const void* data = call.readable(tensor);
  call.add(tccl::send(data, tensor.nbytes(), destination, static_cast<std::uint64_t>(tag)));
  call.set_tensors(tensors, tensors);
  return launch_point_to_point(std::move(call));
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::receive(const Method& method, Tensors& tensors,
                                                  int source, int tag) {
  Call call(method, facts_);
  const at::Tensor& tensor = call.only(tensors, "tensors");
  call.check_output(tensor, "tensor");
  if (source != tccl::kAnySource) call.check_rank(source, "source");
  call.require(tag >= 0, "`tag` must not be negative, but it is ", tag);
  void* data = call.writable(tensor, Call::without_contents);
  call.add(tccl::recv(data, tensor.nbytes(), source, static_cast<std::uint64_t>(tag)));
  call.set_tensors(tensors, tensors);
  return launch_point_to_point(std::move(call));
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::recv(Tensors& tensors, int source, int tag) {
  if (auto* native = native_for(tensors))
    return in_batch([&] { return native->recv(tensors, source, tag); });
  if (source == tccl::kAnySource) Call(kRecv, facts_).check_rank(source, "source");
  return receive(kRecv, tensors, source, tag);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::recvAnysource(Tensors& tensors, int tag) {
  if (auto* native = native_for(tensors))
    return in_batch([&] { return native->recvAnysource(tensors, tag); });
  return receive(kRecvAnysource, tensors, tccl::kAnySource, tag);
}

// ---- other groups

c10::intrusive_ptr<c10d::Backend> ProcessGroupCCL::split(
    const StorePtr& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const auto own = std::ranges::find(ranks, getRank());
  if (own == ranks.end()) return nullptr;
  auto part = own_options(options, effective(kNoTimeout));
  const std::vector<uint64_t>& global = options_->global_ranks_in_group;
  part->global_ranks_in_group.clear();
  for (const int rank : ranks) {
    const auto index = static_cast<std::size_t>(rank);
    part->global_ranks_in_group.push_back(global.empty() ? index : global.at(index));
  }
  std::string name = part->group_name;
  return c10::make_intrusive<ProcessGroupCCL>(store, static_cast<int>(own - ranks.begin()),
                                              static_cast<int>(ranks.size()), std::move(part),
                                              std::move(name));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupCCL::merge(
    const StorePtr& store, const c10::intrusive_ptr<c10d::Backend::Options>& options,
    const int& rank, const int& size) {
  auto merged = own_options(options, effective(kNoTimeout));
  merged->global_ranks_in_group.clear();  // the parent's; those of the others are not known
  std::string name = merged->group_name;
  return c10::make_intrusive<ProcessGroupCCL>(store, rank, size, std::move(merged),
                                              std::move(name));
}

// ---- what became of it

void ProcessGroupCCL::shutdown() {
  if (native_) native_->shutdown();
  communicator_->close();
}

void ProcessGroupCCL::registerOnCompletionHook(Ledger::Hook&& hook) {
  TORCH_CHECK(hook, "ccl: a completion hook must be callable");
  TORCH_CHECK(ledger_->set_hook(std::move(hook)), "ccl: group ", facts_.name,
              " has a completion hook already");
  // Only hasHooks() looks at it.
  onCompletionHook_ = [ledger = ledger_](std::shared_ptr<c10d::WorkInfo> info) {
    (*ledger->hook())(std::move(info));
  };
}

c10d::ErrorType ProcessGroupCCL::getError() {
  const std::exception_ptr error = communicator_->error();
  if (!error) return c10d::ErrorType::SUCCESS;
  try {
    std::rethrow_exception(error);
  } catch (const tccl::Error& e) {
    if (e.code() == tccl::Errc::timeout) return c10d::ErrorType::TIMEOUT;
    if (e.code() == tccl::Errc::peer_lost) return c10d::ErrorType::REMOTE_ERROR;
    return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupCCL::abort() {
  if (native_) native_->abort();
  communicator_->abort(c10::str("abort() was called on rank ", getRank()));
}

}  // namespace torch_ccl
