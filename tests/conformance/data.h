// The inputs: a pure function of (seed, case, rank, block), so that every rank can work out what
// every other one passes. Safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cases.h"
#include "reference.h"

namespace conformance {

/// Elements that the rank numbered `world_rank` in the world passes as its `block`-th block.
Bytes make_block(std::uint64_t seed, const Case& one, int world_rank, int block, std::size_t count);

/// Bytes of a message, whatever they mean.
Bytes make_message(std::uint64_t seed, const Case& one, int sender, int receiver, int number,
                   std::size_t bytes);

/// The factor of premul_sum on that rank, in range of the element type.
double make_factor(std::uint64_t seed, const Case& one, int world_rank);

}  // namespace conformance
