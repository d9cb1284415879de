// What differs between the versions of torch for which the binding compiles: 2.8 to 2.15.
//
// All conditions on torch's version are in this file. What a version lacks is declared here, so the
// rest of the binding overrides and calls the same names for every version.
#pragma once

#include <torch/version.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#define TORCH_CCL_AT_LEAST(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_CCL_AT_LEAST(8),
              "torch-ccl needs torch 2.8 or a later 2.x");

namespace torch_ccl {

// ---- names

#if TORCH_CCL_AT_LEAST(13)
using PreMulSumSupplement = c10d::PreMulSumSupplement;
#else
using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;
#endif

#if TORCH_CCL_AT_LEAST(12)
inline constexpr auto kReduceScatterCoalescedType = c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED;
#else
inline constexpr auto kReduceScatterCoalescedType = c10d::OpType::COALESCED;
#endif

#if TORCH_CCL_AT_LEAST(14)
inline constexpr auto kAllgatherIntoCoalescedType = c10d::OpType::ALLGATHER_INTO_TENSOR_COALESCED;
#else
inline constexpr auto kAllgatherIntoCoalescedType = c10d::OpType::ALLGATHER_COALESCED;
#endif

/// The time of c10d::WorkInfo that corresponds to `time`.
#if TORCH_CCL_AT_LEAST(10)
inline auto work_info_time(std::chrono::steady_clock::time_point time) { return time; }
#else
inline auto work_info_time(std::chrono::steady_clock::time_point time) {
  using std::chrono::system_clock;
  const auto ago = std::chrono::steady_clock::now() - time;
  return system_clock::now() - std::chrono::duration_cast<system_clock::duration>(ago);
}
#endif

// ---- options of a group

/// Has group_name and global_ranks_in_group in every version. torch.distributed assigns them.
struct BackendOptions : c10d::Backend::Options {
  using c10d::Backend::Options::Options;
#if !TORCH_CCL_AT_LEAST(9)
  // In the order of ProcessGroupGloo::Options: see CpuBackend::Options.
  std::vector<uint64_t> global_ranks_in_group;
  std::string group_name;
#endif
#if !TORCH_CCL_AT_LEAST(14)
  virtual c10::intrusive_ptr<c10d::Backend::Options> clone() const = 0;
#endif
};

inline std::string group_name_of(const c10d::Backend::Options& options) {
#if TORCH_CCL_AT_LEAST(9)
  return options.group_name;
#else
  const auto* ours = dynamic_cast<const BackendOptions*>(&options);
  return ours ? ours->group_name : std::string();
#endif
}

inline void copy_group_description([[maybe_unused]] const c10d::Backend::Options& from,
                                   [[maybe_unused]] c10d::Backend::Options& to) {
#if TORCH_CCL_AT_LEAST(11)
  to.group_desc = from.group_desc;
#endif
}

// ---- the process group

/// From torch 2.14 on, c10d calls hooks of the process group around the backend's methods. Its public
/// interface does not tell whether there are any; its protected one does, in 2.15 at least.
template <class Group>
struct HookAccess : Group {
  static bool has_hooks([[maybe_unused]] const Group& group) {
    if constexpr (requires {
                    &HookAccess::preHooks_;
                    &HookAccess::postHooks_;
                  }) {
      return !(group.*(&HookAccess::preHooks_)).empty() ||
             !(group.*(&HookAccess::postHooks_)).empty();
    } else {
      return TORCH_CCL_AT_LEAST(14);
    }
  }
};

inline bool may_have_collective_hooks(const c10d::ProcessGroup& group) {
  return HookAccess<c10d::ProcessGroup>::has_hooks(group);
}

// ---- the backend

/// Whether torch.distributed.shrink_group() exists.
inline constexpr bool kHasShrinkGroup = TORCH_CCL_AT_LEAST(10);

inline void set_timeout([[maybe_unused]] c10d::Backend& backend,
                        [[maybe_unused]] std::chrono::milliseconds timeout) {
#if TORCH_CCL_AT_LEAST(9)
  backend.setTimeout(timeout);
#endif
}

/// c10d::Backend with the virtual methods of the newest version.
class BackendBase : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using OptionsPtr = c10::intrusive_ptr<c10d::Backend::Options>;
  using Tensors = std::vector<at::Tensor>;

  using c10d::Backend::Backend;

#if !TORCH_CCL_AT_LEAST(9)
  virtual void setTimeout(std::chrono::milliseconds timeout) = 0;
  virtual OptionsPtr getBackendOptions() = 0;
  virtual BackendPtr split(const StorePtr& store, const std::vector<int>& ranks,
                           const OptionsPtr& options) = 0;
  virtual BackendPtr merge(const StorePtr& store, const OptionsPtr& options, const int& rank,
                           const int& size) = 0;
#endif

#if !TORCH_CCL_AT_LEAST(10)
  virtual bool supportsShrinking() const = 0;
  virtual BackendPtr shrink(const std::vector<int64_t>& ranks_to_exclude, int shrink_flags,
                            const OptionsPtr& options) = 0;
#endif

#if TORCH_CCL_AT_LEAST(14)
  // The base class forwards the new names to the old ones, too, but it refuses a second call on the
  // same thread while the first one runs: a hook or a callback may make one.
  WorkPtr all_gather_single(at::Tensor& output, at::Tensor& input,
                            const c10d::AllgatherOptions& options) override {
    return _allgather_base(output, input, options);
  }
  WorkPtr all_gather_single_coalesced(Tensors& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& options) override {
    return allgather_into_tensor_coalesced(outputs, inputs, options);
  }
  WorkPtr reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& options) override {
    return _reduce_scatter_base(output, input, options);
  }
  WorkPtr reduce_scatter_single_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    return reduce_scatter_tensor_coalesced(outputs, inputs, options);
  }
  WorkPtr all_to_all_single(at::Tensor& output, at::Tensor& input,
                            std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override {
    return alltoall_base(output, input, output_splits, input_splits, options);
  }
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input,
                        const c10d::GatherOptions& options) override {
    return gather_into(output, input, options);
  }
#endif

  /// gather() into one tensor; `output` counts on the root only.
  virtual WorkPtr gather_into(at::Tensor& output, at::Tensor& input,
                              const c10d::GatherOptions& options) = 0;
};

}  // namespace torch_ccl
