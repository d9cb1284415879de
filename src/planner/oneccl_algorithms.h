// Names of oneCCL's algorithms, which users write in CCL_ALLREDUCE and the like. All of them mean
// the default of this library for that operation and size: most operations have one algorithm per
// place here, and where there are two, forcing one of them for sizes at which it is not the default
// would make a job slower by a factor.
// Thread safety: constants and pure functions.
#pragma once

#include <algorithm>
#include <string_view>

namespace tccl {

inline constexpr std::string_view kOnecclAlgorithms[] = {"2d",
                                                         "direct",
                                                         "double_tree",
                                                         "flat",
                                                         "multi_bcast",
                                                         "naive",
                                                         "nreduce",
                                                         "offload",
                                                         "rabenseifner",
                                                         "ring",
                                                         "recursive_doubling",
                                                         "ring_rma",
                                                         "scatter",
                                                         "starlike",
                                                         "scatter_barrier",
                                                         "topo",
                                                         "tree"};

constexpr bool is_oneccl_algorithm(std::string_view name) {
  return std::ranges::find(kOnecclAlgorithms, name) != std::end(kOnecclAlgorithms);
}

}  // namespace tccl
