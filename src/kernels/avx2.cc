// The kernels for CPUs with AVX2.
#include "kernels/reduce_impl.h"

namespace tccl::kernels {

void reduce_avx2(const Job& job) { reduce_job(job); }

}  // namespace tccl::kernels
