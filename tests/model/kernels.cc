// In place of the library's copies and reductions: each is one access to each of its ranges, which
// the explorer sees, and other threads may run before it.
#include "kernels/copy.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/reduce.h"
#include "model/explorer.h"

namespace tccl::kernels {

void copy(void* to, const void* from, std::size_t bytes) {
  model::interruption_point();
  model::access(from, bytes, /*is_write=*/false);
  model::access(to, bytes, /*is_write=*/true);
  std::memmove(to, from, bytes);
}

void copy_nontemporal(void* to, const void* from, std::size_t bytes) { copy(to, from, bytes); }

/// Sums of int32.
void reduce(void* destination, std::span<const void* const> sources, std::size_t count,
            DType /*dtype*/, ReduceOp /*op*/, std::span<const double> /*factors*/,
            void* second_destination, std::size_t /*divisor*/) {
  const std::size_t bytes = count * sizeof(std::int32_t);
  model::interruption_point();
  for (const void* source : sources) model::access(source, bytes, /*is_write=*/false);
  for (void* to : {destination, second_destination})
    if (to != nullptr) model::access(to, bytes, /*is_write=*/true);
  std::vector<std::int32_t> sums(count);
  for (const void* source : sources)
    for (std::size_t i = 0; i < count; ++i) sums[i] += static_cast<const std::int32_t*>(source)[i];
  for (void* to : {destination, second_destination})
    if (to != nullptr) std::memcpy(to, sums.data(), bytes);
}

}  // namespace tccl::kernels
