#include "staging.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <atomic>
#include <thread>

#include "tccl/error.h"

namespace torch_ccl {
namespace {

// How long a call that has failed waits for copies that are still under way.
constexpr std::chrono::milliseconds kPatience{100};

c10::impl::VirtualGuardImpl guard_of(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

c10::Stream new_stream(at::Device device) {
  return guard_of(device).getStreamFromGlobalPool(device);
}

// By as_strided(), for a contiguous tensor of one element may have any stride.
at::Tensor as_bytes(const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return tensor.as_strided({tensor.numel()}, {1}).view(at::kByte);
}

// Only copies to and from pinned memory are truly asynchronous; not every accelerator has it.
at::Tensor host_bytes(std::size_t bytes) {
  static std::atomic<bool> can_pin{true};  // relaxed: a guess that is found out
  const auto size = static_cast<int64_t>(bytes);
  const auto options = at::TensorOptions().dtype(at::kByte);
  if (can_pin.load(std::memory_order_relaxed)) {
    try {
      return at::empty({size}, options.pinned_memory(true));
    } catch (const c10::OutOfMemoryError&) {  // this time
    } catch (const c10::Error&) {
      can_pin.store(false, std::memory_order_relaxed);
    }
  }
  return at::empty({size}, options);
}

void copy(const at::Tensor& to, const at::Tensor& from) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  to.copy_(from, /*non_blocking=*/true);
}

// The allocator must not hand out memory that such a stream still reads or writes.
void keep_until_used(const at::Tensor& tensor, const c10::Stream& stream) {
  guard_of(stream.device()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

bool comes_by(const c10::Event& event, Clock::time_point deadline,
              const std::function<void()>& stop_if_asked) {
  for (int looks = 0; !event.query(); ++looks) {
    if (Clock::now() > deadline) return false;
    if (looks < 100) {
      std::this_thread::yield();
      continue;
    }
    if (stop_if_asked) stop_if_asked();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

}  // namespace

Staging::Staging(at::Device device)
    : device_(device),
      in_(new_stream(device)),
      out_(new_stream(device)),
      issued_(device.type()),
      done_(device.type()) {}

// After a failure copies may be under way: their memory must stay. If they do not end soon, as on a
// device that hangs, it stays for good: whoever waits for the call is to be told.
Staging::~Staging() {
  if (!is_copying_) return;
  try {
    const auto deadline = Clock::now() + kPatience;
    done_.record(out_);
    bool over = comes_by(done_, deadline, nullptr);
    for (const Stage& stage : stages_) over = over && comes_by(stage.arrived, deadline, nullptr);
    if (over) return;
  } catch (const std::exception&) {  // a device that has failed is not to be trusted with memory
  }
  static_cast<void>(new std::pair(std::move(rooms_), std::move(kept_)));
}

void* Staging::room_for(const at::Tensor& tensor) {
  keep_until_used(tensor, in_);
  keep_until_used(tensor, out_);
  rooms_.push_back({host_bytes(tensor.nbytes()), as_bytes(tensor)});
  return rooms_.back().host.mutable_data_ptr();
}

void Staging::keep(const at::Tensor& tensor) {
  keep_until_used(tensor, out_);
  kept_.push_back(tensor);
}

void Staging::prepare(std::span<const tccl::Operation> operations, Terms terms) {
  terms_ = std::move(terms);
  for (const tccl::Operation& operation : operations)
    for (Piece& piece : cut(operation, terms_.place, terms_.piece_bytes))
      stages_.push_back({std::move(piece), c10::Event(device_.type())});
  issued_.record(guard_of(device_).getStream(device_));
}

std::uint32_t Staging::operations() const noexcept {
  return static_cast<std::uint32_t>(stages_.size());
}

void Staging::run(const tccl::Program::Run& run, const std::function<void()>& then) {
  begin_copying();
  for (Stage& stage : stages_) copy_in(stage);
  for (Stage& stage : stages_) {
    await(stage.arrived);
    run(stage.piece.operation);
    copy_back(stage);
  }
  end_copying(then);
}

void Staging::bring_inputs() {
  begin_copying();
  for (Stage& stage : stages_) copy_in(stage);
  for (const Stage& stage : stages_) await(stage.arrived);
  is_copying_ = false;
}

void Staging::return_outputs(const std::function<void()>& then) {
  begin_copying();
  for (const Stage& stage : stages_) copy_back(stage);
  end_copying(then);
}

void Staging::begin_copying() {
  deadline_ = deadline_after(terms_.timeout);
  is_copying_ = true;
  issued_.block(in_);
  issued_.block(out_);
}

void Staging::end_copying(const std::function<void()>& then) {
  const c10::StreamGuard on_stream(out_);
  then();
  done_.record(out_);
  await(done_);
  is_copying_ = false;
}

Staging::Room Staging::part_at(const Extent& extent) const {
  const auto* data = static_cast<const char*>(extent.data);
  const auto length = static_cast<int64_t>(extent.bytes);
  for (const Room& room : rooms_) {
    const std::ptrdiff_t offset = data - static_cast<const char*>(room.host.const_data_ptr());
    if (offset < 0 || offset + length > room.host.numel()) continue;
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    return {room.host.narrow(0, offset, length), room.device.narrow(0, offset, length)};
  }
  TORCH_INTERNAL_ASSERT(false, "an operation uses memory that is not staged");
}

void Staging::copy_in(Stage& stage) {
  const c10::StreamGuard on_stream(in_);
  for (const Extent& extent : read_by(stage.piece.operation, terms_.place)) {
    if (extent.bytes == 0) continue;
    const Room part = part_at(extent);
    copy(part.host, part.device);
  }
  stage.arrived.record(in_);
}

void Staging::copy_back(const Stage& stage) {
  const c10::StreamGuard on_stream(out_);
  for (const Extent& extent : written_by(stage.piece.operation, terms_.place)) {
    if (extent.bytes == 0) continue;
    const Room part = part_at(extent);
    copy(part.device, part.host);
  }
}

void Staging::await(const c10::Event& event) const {
  if (comes_by(event, deadline_, terms_.stop_if_asked)) return;
  throw tccl::Error(
      tccl::Errc::timeout,
      c10::str(device_, " of rank ", terms_.place.rank, " has not come to this operation in ",
               terms_.timeout.count(), " ms: what its stream was given before is not finished"));
}

}  // namespace torch_ccl
