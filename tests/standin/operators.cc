// The operators of the stand-in device. It makes tensors, views them and copies them, which is a
// job of the current stream; all else is computed by the host, whose results the stream copies
// back.
#include "operators.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "memory.h"
#include "streams.h"

namespace standin {
namespace {

// ---- copies

/// A tensor of the CPU on the elements of `tensor`, wherever they are. It keeps their memory mapped
/// but does not hold back the free of a device's memory: for that a stream must be recorded.
at::Tensor elements_of(const at::Tensor& tensor) {
  std::function<void(void*)> keep_mapped;
  if (tensor.is_cpu()) {
    keep_mapped = [storage = tensor.storage()](void*) {};
  } else {
    keep_mapped = [memory = memory_of(tensor.storage().data_ptr())](void*) {};
  }
  at::Tensor elements =
      at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), keep_mapped,
                    tensor.options().device(at::kCPU).pinned_memory(false).requires_grad(false));
  elements._set_conj(tensor.is_conj());
  elements._set_neg(tensor.is_neg());
  return elements;
}

at::Tensor snapshot(const at::Tensor& tensor) { return tensor.clone(at::MemoryFormat::Contiguous); }

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

void fill_with_garbage(const at::Tensor& target) {
  at::Tensor garbage = at::empty_like(target, at::MemoryFormat::Contiguous);
  if (garbage.nbytes() != 0) std::memset(garbage.data_ptr(), kGarbage, garbage.nbytes());
  target.copy_(garbage);
}

/// Reads all the while and writes at the end. A copy that another stream or the host overtakes is
/// wrong however the threads happen to run: if the source was not written yet at the beginning or
/// is written again before the end, the outcome is garbage.
void copy_slowly(const at::Tensor& target, const at::Tensor& source,
                 std::chrono::microseconds under_way) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor first = snapshot(source);
  Switches& all = switches();
  if (all.copies_under_way.fetch_add(1, std::memory_order_relaxed) > 0)
    all.simultaneous_copies.fetch_add(1, std::memory_order_relaxed);
  std::this_thread::sleep_for(under_way);
  all.copies_under_way.fetch_sub(1, std::memory_order_relaxed);
  if (same_bits(first, snapshot(source))) {
    target.copy_(first);
  } else {
    all.torn_copies.fetch_add(1, std::memory_order_relaxed);
    fill_with_garbage(target);
  }
}

void push_copy(Queue& queue, at::Tensor target, at::Tensor source) {
  const std::chrono::microseconds under_way(switches().delay_us.load(std::memory_order_relaxed));
  queue.push([target = std::move(target), source = std::move(source), under_way] {
    copy_slowly(target, source, under_way);
  });
}

void copy_to_device(const at::Tensor& target, const at::Tensor& source, bool non_blocking) {
  // The host may change its tensor as soon as we return, unless it is pinned and was promised to
  // us.
  const bool read_late = non_blocking && is_pinned(source.data_ptr());
  push_copy(current_queue(target.device().index()), elements_of(target),
            read_late ? elements_of(source) : snapshot(source));
}

void copy_to_host(const at::Tensor& target, const at::Tensor& source, bool non_blocking) {
  Queue& queue = current_queue(source.device().index());
  if (non_blocking && is_pinned(target.data_ptr())) {
    push_copy(queue, elements_of(target), elements_of(source));
  } else {
    queue.synchronize();
    target.copy_(elements_of(source));
  }
}

void copy_on_devices(const at::Tensor& target, const at::Tensor& source) {
  Queue& queue = current_queue(source.device().index());
  Queue& queue_of_target = current_queue(target.device().index());
  const bool two_queues = &queue != &queue_of_target;
  if (two_queues) queue.wait_for(queue_of_target.record());
  push_copy(queue, elements_of(target), elements_of(source));
  if (two_queues) queue_of_target.wait_for(queue.record());
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  at::assert_no_internal_overlap(target);
  const at::Tensor expanded = source.expand(target.sizes());
  if (target.numel() == 0) return target;
  if (source.is_cpu()) {
    copy_to_device(target, expanded, non_blocking);
  } else if (target.is_cpu()) {
    copy_to_host(target, expanded, non_blocking);
  } else {
    copy_on_devices(target, expanded);
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (target.sizes() != source.sizes()) target.resize_(source.sizes());
  return copy_from(source, target, /*non_blocking=*/false);
}

// ---- tensors and their storage

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                 std::optional<bool> /*pin_memory*/, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(size, device_allocator(), kKeys, c10::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                         std::optional<at::Device> device, std::optional<bool> /*pin_memory*/) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(size, stride, device_allocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

void grow_storage(const c10::Storage& storage, std::size_t bytes) {
  if (bytes > storage.nbytes()) resize_storage(storage, bytes);
}

// PyTorch's own functions for the CPU do the rest: they copy nothing where there is room already.
const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  at::detail::check_size_nonnegative(size);
  grow_storage(self.storage(), at::detail::computeStorageNbytesContiguous(
                                   size, self.dtype().itemsize(), self.storage_offset()));
  return at::native::resize_(self, size, format);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  const std::size_t itemsize = self.dtype().itemsize();
  grow_storage(source, stride.size() == size.size()
                           ? at::detail::computeStorageNbytes(size, stride, itemsize, offset)
                           : at::detail::computeStorageNbytesContiguous(size, itemsize, offset));
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  return at::native::set_(self, std::move(source));
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  record_use(self.storage().data_ptr(), stream);
}

// ---- all else

void compute_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

}  // namespace

void resize_storage(const c10::Storage& storage, std::size_t bytes) {
  const c10::DeviceGuard guard(storage.device());
  const std::size_t kept = std::min(bytes, storage.nbytes());
  c10::DataPtr data = device_allocator()->allocate(bytes);
  current_queue(storage.device().index())
      .push([source = memory_of(storage.data_ptr()), target = memory_of(data), kept] {
        if (kept != 0) std::memcpy(target->data(), source->data(), kept);
      });
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(bytes);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("resize_", TORCH_FN(resize));
  library.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  library.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  library.impl("record_stream", TORCH_FN(record_stream));

  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  library.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));

  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));

  // As a whole: through mse_loss.out the CPU warns of an output that PyTorch itself has made.
  library.impl("mse_loss", torch::CppFunction::makeFromBoxedFunction<&compute_on_host>());
}

// Copies see to conjugated and negated tensors themselves; PyTorch would make a copy first, for
// ever.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_host>());
}

}  // namespace standin
