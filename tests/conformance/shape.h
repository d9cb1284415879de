// Number and sizes of the blocks of each rank's input and output. Pure functions, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cases.h"

namespace conformance {

/// Elements of each input block of `rank`; empty if it has no input.
std::vector<std::size_t> input_counts(std::uint64_t seed, const Case& one, int size, int rank);
/// Elements of each output block of `rank`; empty if it has no output.
std::vector<std::size_t> output_counts(std::uint64_t seed, const Case& one, int size, int rank);

bool has_scattered_input(tccl::Op op);
bool has_scattered_output(tccl::Op op);

}  // namespace conformance
