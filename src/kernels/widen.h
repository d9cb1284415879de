// 8-bit floats to float32 and back, rounded to nearest even: for reductions that are made in
// several parts. Safe from any thread.
#pragma once

#include <cstddef>

#include "tccl/types.h"

namespace tccl::kernels {

constexpr bool is_float8(DType dtype) {
  return dtype == DType::float8_e4m3fn || dtype == DType::float8_e5m2 ||
         dtype == DType::float8_e4m3fnuz || dtype == DType::float8_e5m2fnuz;
}

void widen(float* to, const void* from, std::size_t count, DType dtype);
void narrow(void* to, const float* from, std::size_t count, DType dtype);

}  // namespace tccl::kernels
