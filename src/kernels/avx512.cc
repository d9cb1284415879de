// The kernels for CPUs with AVX-512 (F, BW, DQ, VL).
#include "kernels/copy_impl.h"
#include "kernels/pack_impl.h"
#include "kernels/reduce_impl.h"

namespace tccl::kernels {

void reduce_avx512(const Job& job) { reduce_job(job); }
void copy_avx512(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  copy_vectors(to, from, bytes);
}
void stream_avx512(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  stream_vectors(to, from, bytes);
}
extern const Packings kPackingsAvx512 = kPackings;

}  // namespace tccl::kernels
