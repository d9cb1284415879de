// The inputs: a pure function of (seed, case, rank, block), so that each rank can compute the
// inputs of all others. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cases.h"
#include "reference.h"

namespace conformance {

/// Elements of input block `block` of a rank.
Bytes make_block(std::uint64_t seed, const Case& one, int world_rank, int block, std::size_t count);

/// Payload of a point-to-point message.
Bytes make_message(std::uint64_t seed, const Case& one, int sender, int receiver, int number,
                   std::size_t bytes);

/// The factor of premul_sum on that rank, in range of the element type.
double make_factor(std::uint64_t seed, const Case& one, int world_rank);

}  // namespace conformance
