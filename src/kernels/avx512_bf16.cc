// The kernels for CPUs with AVX-512 (F, BW, DQ, VL) that can also round to bfloat16.
#include "kernels/reduce_impl.h"

namespace tccl::kernels {

void reduce_avx512_bf16(const Job& job) { reduce_job(job); }

}  // namespace tccl::kernels
