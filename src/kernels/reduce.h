// Element-wise reduction of several sources into one destination.
//
// Sources are combined in the order given (rank order), so every rank computes the same bits.
// 16- and 8-bit floats are accumulated in float32 and rounded once, to nearest even. Integers wrap.
// MIN and MAX propagate NaN; on a tie the earlier source wins. Sign and payload of a NaN may vary.
// Thread safety: functions without shared state.
#pragma once

#include <cstddef>
#include <span>

#include "tccl/types.h"

namespace tccl::kernels {

/// `destination` may be one of the sources; partial overlap is not allowed. `factors` has one entry
/// per source for premul_sum and is ignored otherwise. `second_destination`, if not null, receives
/// the same bytes in the same pass and may also be a source. avg divides by `divisor`, or by the
/// number of sources if it is 0. Requires supports(dtype, op) and at least one source.
void reduce(void* destination, std::span<const void* const> sources, std::size_t count, DType dtype,
            ReduceOp op, std::span<const double> factors, void* second_destination = nullptr,
            std::size_t divisor = 0);

}  // namespace tccl::kernels
