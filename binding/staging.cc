#include "staging.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <thread>

#include "tccl/error.h"

namespace torch_ccl {
namespace {

// How long a call that has failed waits for copies that are still under way.
constexpr std::chrono::milliseconds kPatience{100};

c10::Stream new_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

// By as_strided(), for a contiguous tensor of one element may have any stride.
at::Tensor as_bytes(const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return tensor.as_strided({tensor.numel()}, {1}).view(at::kByte);
}

// Only copies to and from pinned memory are truly asynchronous; not every accelerator has it.
at::Tensor host_bytes(std::size_t bytes) {
  const auto size = static_cast<int64_t>(bytes);
  try {
    return at::empty({size}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  } catch (const c10::Error&) {
    return at::empty({size}, at::TensorOptions().dtype(at::kByte));
  }
}

void copy(const at::Tensor& to, const at::Tensor& from) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  to.copy_(from, /*non_blocking=*/true);
}

// The allocator must not hand out memory that such a stream still reads or writes.
void keep_until_used(const at::Tensor& tensor, const c10::Stream& stream) {
  c10::impl::VirtualGuardImpl(stream.device_type())
      .recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

bool comes_by(const c10::Event& event, Clock::time_point deadline) {
  for (int looks = 0; !event.query(); ++looks) {
    if (Clock::now() > deadline) return false;
    if (looks < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return true;
}

}  // namespace

Staging::Staging(at::Device device)
    : device_(device), in_(new_stream(device)), out_(new_stream(device)), done_(device.type()) {}

// After a failure copies may be under way: their memory must stay. If they do not end soon, as on a
// device that hangs, it stays for good: whoever waits for the call is to be told.
Staging::~Staging() {
  const auto deadline = Clock::now() + kPatience;
  try {
    if (!stages_.empty()) done_.record(out_);
    bool over = comes_by(done_, deadline);
    for (const Stage& stage : stages_) over = over && comes_by(stage.arrived, deadline);
    if (over) return;
  } catch (const std::exception&) {  // a device that has failed is not to be trusted with memory
  }
  static_cast<void>(new std::vector<Room>(std::move(rooms_)));
}

void* Staging::room_for(const at::Tensor& tensor) {
  keep_until_used(tensor, in_);
  keep_until_used(tensor, out_);
  rooms_.push_back({host_bytes(tensor.nbytes()), as_bytes(tensor)});
  return rooms_.back().host.mutable_data_ptr();
}

void Staging::begin(std::span<const tccl::Operation> operations, Place place,
                    std::size_t piece_bytes, std::chrono::milliseconds timeout) {
  place_ = place;
  timeout_ = timeout;
  deadline_ = deadline_after(timeout);
  for (const tccl::Operation& operation : operations)
    for (Piece& piece : cut(operation, place, piece_bytes))
      stages_.push_back({std::move(piece), c10::Event(device_.type())});
  c10::Event issued(device_.type());
  issued.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  issued.block(in_);
  issued.block(out_);
  for (Stage& stage : stages_) copy_in(stage);
}

std::uint32_t Staging::operations() const noexcept {
  return static_cast<std::uint32_t>(stages_.size());
}

void Staging::await_inputs() const {
  if (!stages_.empty()) await(stages_.back().arrived);
}

void Staging::run(const tccl::Program::Run& run) {
  for (Stage& stage : stages_) {
    await(stage.arrived);
    run(stage.piece.operation);
    copy_back(stage);
  }
}

void Staging::finish(const std::function<void()>& then) {
  for (Stage& stage : stages_)
    if (!stage.copied_back) copy_back(stage);
  const c10::StreamGuard on_stream(out_);
  then();
  done_.record(out_);
  await(done_);
}

Staging::Room Staging::part_at(const Extent& extent) const {
  const auto* data = static_cast<const char*>(extent.data);
  for (const Room& room : rooms_) {
    const auto* begin = static_cast<const char*>(room.host.const_data_ptr());
    const std::ptrdiff_t offset = data - begin;
    if (offset < 0 || offset + static_cast<int64_t>(extent.bytes) > room.host.numel()) continue;
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const auto length = static_cast<int64_t>(extent.bytes);
    return {room.host.narrow(0, offset, length), room.device.narrow(0, offset, length)};
  }
  TORCH_INTERNAL_ASSERT(false, "an operation uses memory that is not staged");
}

void Staging::copy_in(Stage& stage) {
  const c10::StreamGuard on_stream(in_);
  for (const Extent& extent : read_by(stage.piece.operation, place_)) {
    if (extent.bytes == 0) continue;
    const Room part = part_at(extent);
    copy(part.host, part.device);
  }
  stage.arrived.record(in_);
}

void Staging::copy_back(Stage& stage) {
  const c10::StreamGuard on_stream(out_);
  for (const Extent& extent : written_by(stage.piece.operation, place_)) {
    if (extent.bytes == 0) continue;
    const Room part = part_at(extent);
    copy(part.device, part.host);
  }
  stage.copied_back = true;
}

void Staging::await(const c10::Event& event) const {
  if (comes_by(event, deadline_)) return;
  throw tccl::Error(tccl::Errc::timeout,
                    c10::str(device_, " has not come to this operation in ", timeout_.count(),
                             " ms: what its stream was given before is not finished"));
}

}  // namespace torch_ccl
