// send, recv and recvAnysource.
#include "cpu_backend.h"

namespace torch_ccl {
namespace {

using c10d::OpType;

constexpr Method kSend{OpType::SEND, "send", "send"};
constexpr Method kRecv{OpType::RECV, "recv", "recv"};
constexpr Method kRecvAnysource{OpType::RECVANYSOURCE, "recvAnysource", "recvAnySource"};

}  // namespace

CpuBackend::WorkPtr CpuBackend::send(Tensors& tensors, int destination, int tag) {
  CollectiveRequest request(kSend, group_);
  const at::Tensor& tensor = request.single_entry(tensors, "tensors");
  request.check_input(tensor, "tensor");
  request.check_rank(destination, "destination");
  request.require(tag >= 0, "`tag` must not be negative, but it is ", tag);
  const void* data = request.input_data(tensor);
  request.add(tccl::send(data, tensor.nbytes(), destination, static_cast<std::uint64_t>(tag)));
  request.add_tensors(tensors, tensors);
  return run_point_to_point(std::move(request));
}

CpuBackend::WorkPtr CpuBackend::start_recv(const Method& method, Tensors& tensors, int source,
                                           int tag) {
  CollectiveRequest request(method, group_);
  const at::Tensor& tensor = request.single_entry(tensors, "tensors");
  request.check_output(tensor, "tensor");
  if (source != tccl::kAnySource) request.check_rank(source, "source");
  request.require(tag >= 0, "`tag` must not be negative, but it is ", tag);
  void* data = request.output_data(tensor, CollectiveRequest::discard_contents);
  request.add(tccl::recv(data, tensor.nbytes(), source, static_cast<std::uint64_t>(tag)));
  request.add_tensors(tensors, tensors);
  return run_point_to_point(std::move(request));
}

CpuBackend::WorkPtr CpuBackend::recv(Tensors& tensors, int source, int tag) {
  if (source == tccl::kAnySource) CollectiveRequest(kRecv, group_).check_rank(source, "source");
  return start_recv(kRecv, tensors, source, tag);
}

CpuBackend::WorkPtr CpuBackend::recvAnysource(Tensors& tensors, int tag) {
  return start_recv(kRecvAnysource, tensors, tccl::kAnySource, tag);
}

}  // namespace torch_ccl
