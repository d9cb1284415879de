// Conversion between 8-bit floats and float32, rounded to nearest even, for reductions in several
// stages.
// Thread safety: functions without shared state.
#pragma once

#include <cstddef>

#include "tccl/types.h"

namespace tccl::kernels {

constexpr bool is_float8(DType dtype) {
  return dtype == DType::float8_e4m3fn || dtype == DType::float8_e5m2 ||
         dtype == DType::float8_e4m3fnuz || dtype == DType::float8_e5m2fnuz;
}

void float8_to_float32(float* to, const void* from, std::size_t count, DType dtype);
void float32_to_float8(void* to, const float* from, std::size_t count, DType dtype);

}  // namespace tccl::kernels
