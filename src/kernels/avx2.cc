// The kernels for CPUs with AVX2 and F16C.
#include "kernels/copy_impl.h"
#include "kernels/pack_impl.h"
#include "kernels/reduce_impl.h"

namespace tccl::kernels {

void reduce_avx2(const Job& job) { reduce_job(job); }
void copy_avx2(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  copy_vectors(to, from, bytes);
}
void stream_avx2(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  stream_vectors(to, from, bytes);
}
extern const Packings kPackingsAvx2 = kPackings;

}  // namespace tccl::kernels
