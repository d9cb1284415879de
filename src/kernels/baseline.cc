// The kernels for what every machine of the architecture has.
#include "kernels/reduce_impl.h"

namespace tccl::kernels {

void reduce_baseline(const Job& job) { reduce_job(job); }

}  // namespace tccl::kernels
