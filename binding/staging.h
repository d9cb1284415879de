// Tensors of an accelerator in one call: they travel through host memory.
//
// The collective is cut into pieces. While one piece is on its way between the ranks, the next is
// being copied to the host and the one before it back, if the host's memory can be pinned:
//
//   stream in    | 1 in | 2 in | 3 in |
//   ranks               | 1    | 2    | 3     |
//   stream out                 | 1 out | 2 out | 3 out |
//
// The first copy waits for what the caller's current stream had been given when the call was made,
// and what is copied back comes behind it. The copies begin when it is the call's turn among the
// group's collectives, and the next one's turn comes when the results lie in the accelerator's
// memory: so a collective sees what the one before it has written, if its tensors are contiguous,
// and every stream may read the results without a further wait. That also keeps memory from being
// used again too early. Nothing here knows what accelerator it is: torch's guards do.
//
// Not thread-safe: belongs to the thread that makes the call, then to the one that runs it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <functional>
#include <span>
#include <vector>

#include "deadline.h"
#include "pieces.h"
#include "tccl/communicator.h"

namespace torch_ccl {

class Staging {
 public:
  explicit Staging(at::Device device);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  /// On which the results are written.
  [[nodiscard]] c10::Stream output_stream() const noexcept { return out_; }
  /// Host memory in the place of `tensor`, which must be contiguous.
  void* room_for(const at::Tensor& tensor);
  /// For a tensor that is written on the output stream but has no room.
  void keep(const at::Tensor& tensor);

  /// Called while it waits; throws if the wait is to end. The other ranks are needed until all is
  /// exchanged.
  using Stop = std::function<void(bool needs_others)>;
  struct Terms {
    Place place;
    std::size_t piece_bytes;
    std::chrono::milliseconds timeout;  // of the call
    Stop stop_if_asked;
  };
  /// What is to be done, in the rooms' memory. The current stream's work of by now comes first.
  void prepare(std::span<const tccl::Operation> operations, Terms terms);

  // ---- collectives

  [[nodiscard]] std::uint32_t operations() const noexcept;
  /// All of it. `then` may add to the output stream.
  void run(const tccl::OperationSequence::Run& run, const std::function<void()>& then);

  // ---- messages, which are sent as soon as they are started

  void bring_inputs();
  /// Does not wait; true when what has come is on the device. To be repeated until then. Until the
  /// stream has come to the call, which the first of these calls gives the call's timeout for,
  /// nothing is written.
  bool try_return_outputs(const std::function<void()>& then);

 private:
  /// The same bytes here and there.
  struct Room {
    at::Tensor host, device;
  };
  struct Stage {
    Piece piece;
    c10::Event arrived;
    bool sees_results;  // of the stages before it: its operation reads what others write
  };

  [[nodiscard]] std::vector<Extent> on_device(const std::vector<Extent>& on_host) const;
  void begin_copying(bool needs_others = false);
  void await_results();
  [[nodiscard]] Room part_at(const Extent& extent) const;
  void copy_in(Stage& stage);
  void copy_back(const Stage& stage);
  void end_copying(const std::function<void()>& then);
  void await(const c10::Event& event, bool needs_others = false) const;
  /// Throws if it is not to be waited for any longer.
  [[nodiscard]] bool has_come(const c10::Event& event, bool needs_others = false) const;

  const at::Device device_;
  const c10::Stream in_;
  const c10::Stream out_;
  Terms terms_{};
  c10::Event issued_;  // what the caller's stream had been given
  std::vector<Room> rooms_;
  bool is_pinned_ = true;  // all of the rooms' host memory
  std::vector<at::Tensor> kept_;
  std::vector<Stage> stages_;
  c10::Event done_;
  Clock::time_point deadline_{};
  bool is_copying_ = false;
};

}  // namespace torch_ccl
