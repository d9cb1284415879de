// Stages the tensors of an accelerator through host memory, for one call.
//
// A collective is split into chunks (chunking.h). If host memory can be pinned, three things
// overlap: the copy of the next chunk to the host, the communication of this one, and the copy of
// the previous result to the device:
//
//   copy-in stream   | 1 in | 2 in | 3 in |
//   communication           | 1    | 2    | 3     |
//   copy-out stream                | 1 out | 2 out | 3 out |
//
// Ordering with the device:
// - The first copy waits for the work that the caller's current stream had when the call was made.
//   Copies back to the device come after it, too.
// - The copies start when the collective reaches the head of the group's queue. The next collective
//   starts when the results are in device memory. So a collective reads what the previous one wrote
//   (if its tensors are contiguous), and any stream may read the results without a further wait.
// - The caching allocator cannot reuse the memory too early, for the same reason.
// Works with every accelerator that has torch's device guard; no code here is specific to one.
// Thread safety: none; belongs to the thread that makes the call, then to the one that runs it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <functional>
#include <span>
#include <vector>

#include "chunking.h"
#include "polling.h"
#include "tccl/communicator.h"

namespace torch_ccl {

class Staging {
 public:
  explicit Staging(at::Device device);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  /// The stream on which the results are written.
  [[nodiscard]] c10::Stream output_stream() const noexcept { return copy_out_stream_; }
  /// Allocates host memory for `tensor`, which must be contiguous, and returns its address.
  void* add_buffer(const at::Tensor& tensor);
  /// Keeps alive a tensor that is written on the output stream but has no buffer.
  void keep_alive(const at::Tensor& tensor);

  /// Called while a wait polls; throws to end the wait. `needs_peers` is true until all data is
  /// exchanged.
  using WhileWaiting = std::function<void(bool needs_peers)>;
  struct Options {
    RankAndSize self;
    std::size_t chunk_bytes;
    std::chrono::milliseconds timeout;  // of the call
    WhileWaiting while_waiting;
  };
  /// Sets the operations, which use the buffers' host memory, and records the work that the current
  /// stream has now: all copies come after it.
  void prepare(std::span<const tccl::Operation> operations, Options options);

  // ---- collectives

  /// The number of operations that run_all() runs.
  [[nodiscard]] std::uint32_t operation_count() const noexcept;
  /// Copies in, runs every chunk, copies out. `on_output_stream` may add work to that stream.
  void run_all(const tccl::OperationList::Run& run, const std::function<void()>& on_output_stream);

  // ---- point to point, where the copies are not part of the operation

  /// Before a send is started.
  void copy_inputs_to_host();
  /// After a receive. Does not wait; returns true when the data is in device memory, and must be
  /// repeated until then. Nothing is written until the caller's stream has reached the call; the
  /// call's timeout for that starts with the first attempt.
  bool try_copy_outputs_to_device(const std::function<void()>& on_output_stream);

 private:
  /// The same bytes in host and device memory.
  struct Buffer {
    at::Tensor host, device;
  };
  struct StagedChunk {
    Chunk chunk;
    c10::Event on_host;          // its inputs are in host memory
    bool reads_earlier_results;  // it reads what an earlier operation of this call writes
  };

  [[nodiscard]] std::vector<MemoryRange> on_device(const std::vector<MemoryRange>& on_host) const;
  [[nodiscard]] Buffer slice_at(const MemoryRange& host_range) const;
  void start_copies(bool needs_peers = false);
  void order_copies_after_results();
  void copy_to_host(StagedChunk& chunk);
  void copy_to_device(const StagedChunk& chunk);
  void record_outputs(const std::function<void()>& on_output_stream);
  void wait_for(const c10::Event& event, bool needs_peers = false) const;
  /// Whether the device has reached `event`. Throws at the deadline, or what while_waiting throws.
  [[nodiscard]] bool poll(const c10::Event& event, bool needs_peers = false) const;

  const at::Device device_;
  const c10::Stream copy_in_stream_;
  const c10::Stream copy_out_stream_;
  Options options_{};
  c10::Event inputs_ready_;  // the work of the caller's stream at the time of the call
  std::vector<Buffer> buffers_;
  bool is_pinned_ = true;  // the host memory of all buffers
  std::vector<at::Tensor> kept_alive_;
  std::vector<StagedChunk> chunks_;
  c10::Event outputs_written_;
  Deadline deadline_{};
  bool is_copying_ = false;
};

}  // namespace torch_ccl
