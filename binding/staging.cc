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

// How long the destructor of a failed call waits for copies that are still in flight.
constexpr std::chrono::milliseconds kInFlightCopyTimeout{100};

c10::impl::VirtualGuardImpl guard_of(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

c10::Stream new_stream(at::Device device) {
  return guard_of(device).getStreamFromGlobalPool(device);
}

// as_strided(), because a contiguous tensor of one element may have any stride.
at::Tensor as_bytes(const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return tensor.as_strided({tensor.numel()}, {1}).view(at::kByte);
}

// Only copies to and from pinned memory are asynchronous; not every accelerator supports pinning.
at::Tensor allocate_on_host(std::size_t bytes) {
  static std::atomic<bool> can_pin{true};  // relaxed: a hint; a wrong value costs one exception
  const auto size = static_cast<int64_t>(bytes);
  const auto options = at::TensorOptions().dtype(at::kByte);
  if (can_pin.load(std::memory_order_relaxed)) {
    try {
      return at::empty({size}, options.pinned_memory(true));
    } catch (const c10::OutOfMemoryError&) {  // may succeed next time
    } catch (const c10::Error&) {
      can_pin.store(false, std::memory_order_relaxed);
    }
  }
  return at::empty({size}, options);
}

void copy_async(const at::Tensor& to, const at::Tensor& from) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  to.copy_(from, /*non_blocking=*/true);
}

template <class Condition>
void poll_until(const Condition& condition) {
  for (int polls = 0; polls < 100; ++polls) {
    if (condition()) return;
    std::this_thread::yield();
  }
  const PollBackoff backoff;
  while (!condition()) backoff.sleep();
}

bool completes_in_time(const c10::Event& event) {
  const auto deadline = Clock::now() + kInFlightCopyTimeout;
  poll_until([&] { return event.query() || Clock::now() > deadline; });
  return event.query();
}

bool overlap(const MemoryRange& a, const MemoryRange& b) {
  const auto* const begin_a = static_cast<const char*>(a.data);
  const auto* const begin_b = static_cast<const char*>(b.data);
  return begin_a < begin_b + b.bytes && begin_b < begin_a + a.bytes;
}

bool overlap_any(const std::vector<MemoryRange>& ranges, const std::vector<MemoryRange>& others) {
  return std::ranges::any_of(ranges, [&](const MemoryRange& a) {
    return std::ranges::any_of(others, [&](const MemoryRange& b) { return overlap(a, b); });
  });
}

}  // namespace

Staging::Staging(at::Device device)
    : device_(device),
      copy_in_stream_(new_stream(device)),
      copy_out_stream_(new_stream(device)),
      inputs_ready_(device.type()),
      outputs_written_(device.type()) {}

// After a failure, copies may still be in flight and need their memory. If they do not complete
// soon, as on a hanging device, the memory is leaked: waiting longer would delay the error.
Staging::~Staging() {
  if (!is_copying_) return;
  try {
    c10::Event copied_in(device_.type());
    copied_in.record(copy_in_stream_);
    outputs_written_.record(copy_out_stream_);
    if (completes_in_time(copied_in) && completes_in_time(outputs_written_)) return;
  } catch (const std::exception&) {  // the device has failed; it may still access the memory
  }
  static_cast<void>(new (std::nothrow) std::pair(std::move(buffers_), std::move(kept_alive_)));
}

void* Staging::add_buffer(const at::Tensor& tensor) {
  Buffer& buffer =
      buffers_.emplace_back(Buffer{allocate_on_host(tensor.nbytes()), as_bytes(tensor)});
  is_pinned_ = is_pinned_ && (buffer.host.numel() == 0 || buffer.host.is_pinned());
  return buffer.host.mutable_data_ptr();
}

void Staging::keep_alive(const at::Tensor& tensor) { kept_alive_.push_back(tensor); }

void Staging::prepare(std::span<const tccl::Operation> operations, Options options) {
  options_ = std::move(options);
  std::vector<MemoryRange> written;  // by the operations so far
  for (const tccl::Operation& operation : operations) {
    bool reads_earlier_results = false;
    if (operations.size() > 1) {
      reads_earlier_results =
          overlap_any(on_device(ranges_read(operation, options_.self)), written);
      std::ranges::copy(on_device(ranges_written(operation, options_.self)),
                        std::back_inserter(written));
    }
    // Only the first chunk has to wait for results: the others follow it on the same stream.
    for (Chunk& chunk : split_into_chunks(operation, options_.self, options_.chunk_bytes))
      chunks_.push_back({std::move(chunk), c10::Event(device_.type()),
                         std::exchange(reads_earlier_results, false)});
  }
  inputs_ready_.record(guard_of(device_).getStream(device_));
}

std::vector<MemoryRange> Staging::on_device(const std::vector<MemoryRange>& on_host) const {
  std::vector<MemoryRange> ranges;
  for (const MemoryRange& range : on_host)
    if (range.bytes != 0) ranges.push_back({slice_at(range).device.const_data_ptr(), range.bytes});
  return ranges;
}

std::uint32_t Staging::operation_count() const noexcept {
  return static_cast<std::uint32_t>(chunks_.size());
}

void Staging::run_all(const tccl::OperationList::Run& run,
                      const std::function<void()>& on_output_stream) {
  start_copies(/*needs_peers=*/true);
  std::size_t copied_in = 0;
  for (std::size_t current = 0; current < chunks_.size(); ++current) {
    if (copied_in == current) {
      order_copies_after_results();
      copy_to_host(chunks_[copied_in++]);
    }
    if (copied_in < chunks_.size() && !chunks_[copied_in].reads_earlier_results)
      copy_to_host(chunks_[copied_in++]);
    wait_for(chunks_[current].on_host, /*needs_peers=*/true);
    run(chunks_[current].chunk.operation);
    copy_to_device(chunks_[current]);
  }
  record_outputs(on_output_stream);
  wait_for(outputs_written_);
  is_copying_ = false;
}

void Staging::copy_inputs_to_host() {
  start_copies();
  for (StagedChunk& chunk : chunks_) copy_to_host(chunk);
  for (const StagedChunk& chunk : chunks_) wait_for(chunk.on_host);
  is_copying_ = false;
}

// A copy that is enqueued before the stream reaches the call would also be executed after the call
// has failed. So nothing is enqueued until then.
bool Staging::try_copy_outputs_to_device(const std::function<void()>& on_output_stream) {
  if (deadline_ == Deadline()) deadline_ = deadline_after(options_.timeout);
  if (!is_copying_) {
    if (!poll(inputs_ready_)) return false;
    is_copying_ = true;
    for (const StagedChunk& chunk : chunks_) copy_to_device(chunk);
    record_outputs(on_output_stream);
  }
  if (!poll(outputs_written_)) return false;
  is_copying_ = false;
  return true;
}

void Staging::start_copies(bool needs_peers) {
  deadline_ = deadline_after(options_.timeout);
  // A copy from or to unpinned memory blocks until its stream reaches it, with no timeout. So the
  // wait, which has one, comes first.
  if (!is_pinned_) wait_for(inputs_ready_, needs_peers);
  is_copying_ = true;
  inputs_ready_.block(copy_in_stream_);
}

void Staging::order_copies_after_results() {
  outputs_written_.record(copy_out_stream_);
  outputs_written_.block(copy_in_stream_);
}

void Staging::record_outputs(const std::function<void()>& on_output_stream) {
  const c10::StreamGuard guard(copy_out_stream_);
  on_output_stream();
  outputs_written_.record(copy_out_stream_);
}

Staging::Buffer Staging::slice_at(const MemoryRange& host_range) const {
  const auto* data = static_cast<const char*>(host_range.data);
  const auto length = static_cast<int64_t>(host_range.bytes);
  for (const Buffer& buffer : buffers_) {
    const std::ptrdiff_t offset = data - static_cast<const char*>(buffer.host.const_data_ptr());
    if (offset < 0 || offset + length > buffer.host.numel()) continue;
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    return {buffer.host.narrow(0, offset, length), buffer.device.narrow(0, offset, length)};
  }
  TORCH_INTERNAL_ASSERT(false, "an operation uses memory that is not staged");
}

void Staging::copy_to_host(StagedChunk& chunk) {
  const c10::StreamGuard guard(copy_in_stream_);
  for (const MemoryRange& range : ranges_read(chunk.chunk.operation, options_.self)) {
    if (range.bytes == 0) continue;
    const Buffer slice = slice_at(range);
    copy_async(slice.host, slice.device);
  }
  chunk.on_host.record(copy_in_stream_);
}

void Staging::copy_to_device(const StagedChunk& chunk) {
  const c10::StreamGuard guard(copy_out_stream_);
  for (const MemoryRange& range : ranges_written(chunk.chunk.operation, options_.self)) {
    if (range.bytes == 0) continue;
    const Buffer slice = slice_at(range);
    copy_async(slice.device, slice.host);
  }
}

void Staging::wait_for(const c10::Event& event, bool needs_peers) const {
  poll_until([&] { return poll(event, needs_peers); });
}

bool Staging::poll(const c10::Event& event, bool needs_peers) const {
  if (event.query()) return true;
  const auto device = [this] { return c10::str(device_, " of rank ", options_.self.rank); };
  if (Clock::now() > deadline_)
    throw tccl::Error(
        tccl::Errc::timeout,
        c10::str(device(), " did not reach this operation within ", options_.timeout.count(),
                 " ms: earlier work on its stream is not finished"));
  try {
    options_.while_waiting(needs_peers);
  } catch (const tccl::Error& error) {  // on another rank, which may have waited for this device
    throw tccl::Error(error.code(),
                      c10::str(error.what(), " (", device(), " had not reached this operation)"),
                      error.ranks());
  }
  return false;
}

}  // namespace torch_ccl
