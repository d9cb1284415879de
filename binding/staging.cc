#include "staging.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <thread>

#include "tccl/error.h"

namespace torch_ccl {
namespace {

// How long a call that has failed waits for copies that are still under way.
constexpr std::chrono::milliseconds kPatience{100};
// Between two looks at an event that has not come: at first, and at most.
constexpr std::chrono::microseconds kShortNap{50};
constexpr std::chrono::microseconds kLongNap{1000};

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

bool comes_by(const c10::Event& event, Clock::time_point deadline,
              const std::function<void()>& stop_if_asked = nullptr) {
  std::chrono::microseconds nap = kShortNap;
  for (int looks = 0; !event.query(); ++looks) {
    if (Clock::now() > deadline) return false;
    if (looks < 100) {
      std::this_thread::yield();
      continue;
    }
    if (stop_if_asked) stop_if_asked();
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, kLongNap);
  }
  return true;
}

bool overlap_anywhere(std::vector<Extent> extents) {
  const auto begin = [](const Extent& extent) { return static_cast<const char*>(extent.data); };
  std::ranges::sort(extents, {}, begin);
  const auto overlaps = [&](const Extent& a, const Extent& b) {
    return begin(a) + a.bytes > begin(b);
  };
  return std::ranges::adjacent_find(extents, overlaps) != extents.end();
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
    c10::Event all_in(device_.type());
    all_in.record(in_);
    done_.record(out_);
    if (comes_by(all_in, deadline) && comes_by(done_, deadline)) return;
  } catch (const std::exception&) {  // a device that has failed is not to be trusted with memory
  }
  static_cast<void>(new (std::nothrow) std::pair(std::move(rooms_), std::move(kept_)));
}

void* Staging::room_for(const at::Tensor& tensor) {
  Room& room = rooms_.emplace_back(Room{host_bytes(tensor.nbytes()), as_bytes(tensor)});
  is_pinned_ = is_pinned_ && (room.host.numel() == 0 || room.host.is_pinned());
  return room.host.mutable_data_ptr();
}

void Staging::keep(const at::Tensor& tensor) { kept_.push_back(tensor); }

void Staging::prepare(std::span<const tccl::Operation> operations, Terms terms) {
  terms_ = std::move(terms);
  const bool in_turn = operations.size() > 1 && rooms_overlap();
  for (const tccl::Operation& operation : operations) {
    const bool sees_results = in_turn && !stages_.empty();
    for (Piece& piece : cut(operation, terms_.place, terms_.piece_bytes))
      stages_.push_back({std::move(piece), c10::Event(device_.type()), sees_results});
  }
  issued_.record(guard_of(device_).getStream(device_));
}

bool Staging::rooms_overlap() const {
  std::vector<Extent> extents;
  for (const Room& room : rooms_)
    if (const std::size_t bytes = room.device.nbytes(); bytes != 0)
      extents.push_back({room.device.const_data_ptr(), bytes});
  return overlap_anywhere(std::move(extents));
}

std::uint32_t Staging::operations() const noexcept {
  return static_cast<std::uint32_t>(stages_.size());
}

void Staging::run(const tccl::Program::Run& run, const std::function<void()>& then) {
  begin_copying();
  std::size_t brought = 0;
  for (std::size_t now = 0; now < stages_.size(); ++now) {
    if (brought == now) {
      await_results();
      copy_in(stages_[brought++]);
    }
    if (brought < stages_.size() && !stages_[brought].sees_results) copy_in(stages_[brought++]);
    await(stages_[now].arrived, /*needs_others=*/true);
    run(stages_[now].piece.operation);
    copy_back(stages_[now]);
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
  // Without pinned memory a copy does not return before its stream has come to it, which may be
  // never. Nothing can end that wait, but this one.
  if (!is_pinned_) await(issued_);
  issued_.block(in_);
  issued_.block(out_);
}

void Staging::await_results() {
  done_.record(out_);
  done_.block(in_);
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

void Staging::await(const c10::Event& event, bool needs_others) const {
  const std::string who = c10::str(device_, " of rank ", terms_.place.rank);
  try {
    if (comes_by(event, deadline_, [&] { terms_.stop_if_asked(needs_others); })) return;
  } catch (const tccl::Error& error) {  // of another rank, which may have waited for this one
    throw tccl::Error(error.code(),
                      c10::str(error.what(), " (", who, " had not come to this operation yet)"),
                      error.ranks());
  }
  throw tccl::Error(tccl::Errc::timeout,
                    c10::str(who, " has not come to this operation in ", terms_.timeout.count(),
                             " ms: what its stream was given before is not finished"));
}

}  // namespace torch_ccl
