// Tensors of an accelerator in one call: they travel through host memory.
//
// The collective is cut into pieces. While one piece is on its way between the ranks, the next is
// being copied to the host and the one before it back:
//
//   stream in    | 1 in | 2 in | 3 in |
//   ranks               | 1    | 2    | 3     |
//   stream out                 | 1 out | 2 out | 3 out |
//
// Both streams wait for what the caller's current stream had been given when the call was made; the
// call is complete when the results lie in the accelerator's memory, so that every stream may read
// them without a further wait. Nothing here knows what accelerator it is: torch's guards do.
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

  [[nodiscard]] at::Device device() const noexcept { return device_; }
  /// On which the results are written.
  [[nodiscard]] c10::Stream output_stream() const noexcept { return out_; }
  /// Host memory in the place of `tensor`, which must be contiguous.
  void* room_for(const at::Tensor& tensor);

  /// Starts to copy what the operations read. They use the rooms' memory.
  void begin(std::span<const tccl::Operation> operations, Place place, std::size_t piece_bytes,
             std::chrono::milliseconds timeout);
  [[nodiscard]] std::uint32_t operations() const noexcept;
  /// Until all that the operations read has come.
  void await_inputs() const;
  /// Runs the pieces, and starts to copy back what each has written.
  void run(const tccl::Program::Run& run);
  /// Copies back what is left, and waits. `then` adds to the stream before that.
  void finish(const std::function<void()>& then);

 private:
  /// The same bytes here and there.
  struct Room {
    at::Tensor host, device;
  };
  struct Stage {
    Piece piece;
    c10::Event arrived;
    bool copied_back = false;
  };

  [[nodiscard]] Room part_at(const Extent& extent) const;
  void copy_in(Stage& stage);
  void copy_back(Stage& stage);
  void await(const c10::Event& event) const;

  const at::Device device_;
  const c10::Stream in_;
  const c10::Stream out_;
  Place place_{};
  std::vector<Room> rooms_;
  std::vector<Stage> stages_;
  c10::Event done_;
  std::chrono::milliseconds timeout_{};
  Clock::time_point deadline_{};
};

}  // namespace torch_ccl
