// The kernels for CPUs with AVX-512 (F, BW, DQ, VL).
#include "kernels/reduce_impl.h"

namespace tccl::kernels {

void reduce_avx512(const Job& job) { reduce_job(job); }

}  // namespace tccl::kernels
