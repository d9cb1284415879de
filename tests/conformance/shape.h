// How many blocks of how many elements each rank passes to and gets from an operation.
// Pure, safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cases.h"

namespace conformance {

/// Elements of each block that `rank` passes; none where it passes nothing.
std::vector<std::size_t> input_counts(std::uint64_t seed, const Case& one, int size, int rank);
/// Elements of each block that `rank` has room for; none where its output is not used.
std::vector<std::size_t> output_counts(std::uint64_t seed, const Case& one, int size, int rank);

bool has_scattered_input(tccl::Op op);
bool has_scattered_output(tccl::Op op);

}  // namespace conformance
