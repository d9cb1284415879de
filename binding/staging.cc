#include "staging.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <new>
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

/// Looks again and again until `has_come` is true.
template <class Look>
void await_by_looking(const Look& has_come) {
  for (int looks = 0; looks < 100; ++looks) {
    if (has_come()) return;
    std::this_thread::yield();
  }
  const Naps naps;
  while (!has_come()) naps.take();
}

bool comes_soon(const c10::Event& event) {
  const auto deadline = Clock::now() + kPatience;
  await_by_looking([&] { return event.query() || Clock::now() > deadline; });
  return event.query();
}

bool overlap(const Extent& a, const Extent& b) {
  const auto* const begin_a = static_cast<const char*>(a.data);
  const auto* const begin_b = static_cast<const char*>(b.data);
  return begin_a < begin_b + b.bytes && begin_b < begin_a + a.bytes;
}

bool overlap_any(const std::vector<Extent>& some, const std::vector<Extent>& others) {
  return std::ranges::any_of(some, [&](const Extent& a) {
    return std::ranges::any_of(others, [&](const Extent& b) { return overlap(a, b); });
  });
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
    c10::Event all_in(device_.type());
    all_in.record(in_);
    done_.record(out_);
    if (comes_soon(all_in) && comes_soon(done_)) return;
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
  std::vector<Extent> written;  // by the operations before
  for (const tccl::Operation& operation : operations) {
    bool sees_results = false;
    if (operations.size() > 1) {
      sees_results = overlap_any(on_device(read_by(operation, terms_.place)), written);
      std::ranges::copy(on_device(written_by(operation, terms_.place)),
                        std::back_inserter(written));
    }
    for (Piece& piece : cut(operation, terms_.place, terms_.piece_bytes))
      stages_.push_back({std::move(piece), c10::Event(device_.type()),
                         std::exchange(sees_results, false)});  // the others come behind it
  }
  issued_.record(guard_of(device_).getStream(device_));
}

std::vector<Extent> Staging::on_device(const std::vector<Extent>& on_host) const {
  std::vector<Extent> there;
  for (const Extent& extent : on_host)
    if (extent.bytes != 0) there.push_back({part_at(extent).device.const_data_ptr(), extent.bytes});
  return there;
}

std::uint32_t Staging::operations() const noexcept {
  return static_cast<std::uint32_t>(stages_.size());
}

void Staging::run(const tccl::OperationSequence::Run& run, const std::function<void()>& then) {
  begin_copying(/*needs_others=*/true);
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
  await(done_);
  is_copying_ = false;
}

void Staging::bring_inputs() {
  begin_copying();
  for (Stage& stage : stages_) copy_in(stage);
  for (const Stage& stage : stages_) await(stage.arrived);
  is_copying_ = false;
}

// What is copied before the stream has come would be written also after this has failed.
bool Staging::try_return_outputs(const std::function<void()>& then) {
  if (deadline_ == Clock::time_point()) deadline_ = deadline_after(terms_.timeout);
  if (!is_copying_) {
    if (!has_come(issued_)) return false;
    is_copying_ = true;
    for (const Stage& stage : stages_) copy_back(stage);
    end_copying(then);
  }
  if (!has_come(done_)) return false;
  is_copying_ = false;
  return true;
}

void Staging::begin_copying(bool needs_others) {
  deadline_ = deadline_after(terms_.timeout);
  // Without pinned memory a copy does not return before its stream has come to it, which may be
  // never. Nothing can end that wait, but this one.
  if (!is_pinned_) await(issued_, needs_others);
  is_copying_ = true;
  issued_.block(in_);
}

void Staging::await_results() {
  done_.record(out_);
  done_.block(in_);
}

void Staging::end_copying(const std::function<void()>& then) {
  const c10::StreamGuard on_stream(out_);
  then();
  done_.record(out_);
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
  await_by_looking([&] { return has_come(event, needs_others); });
}

bool Staging::has_come(const c10::Event& event, bool needs_others) const {
  if (event.query()) return true;
  const auto who = [this] { return c10::str(device_, " of rank ", terms_.place.rank); };
  if (Clock::now() > deadline_)
    throw tccl::Error(tccl::Errc::timeout,
                      c10::str(who(), " has not come to this operation in ", terms_.timeout.count(),
                               " ms: what its stream was given before is not finished"));
  try {
    terms_.stop_if_asked(needs_others);
  } catch (const tccl::Error& error) {  // of another rank, which may have waited for this one
    throw tccl::Error(error.code(),
                      c10::str(error.what(), " (", who(), " had not come to this operation yet)"),
                      error.ranks());
  }
  return false;
}

}  // namespace torch_ccl
