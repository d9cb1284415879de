// The kernels for CPUs with AVX2 and F16C.
#include "kernels/reduce_impl.h"

namespace tccl::kernels {

void reduce_avx2(const Job& job) { reduce_job(job); }

}  // namespace tccl::kernels
