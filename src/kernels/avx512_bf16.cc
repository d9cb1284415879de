// The kernels for CPUs with AVX-512 (F, BW, DQ, VL) that can also round to bfloat16.
#include "kernels/copy_impl.h"
#include "kernels/pack_impl.h"
#include "kernels/reduce_impl.h"

namespace tccl::kernels {

void reduce_avx512_bf16(const Job& job) { reduce_job(job); }
void copy_avx512_bf16(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  copy_vectors(to, from, bytes);
}
void stream_avx512_bf16(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  stream_vectors(to, from, bytes);
}
extern const Packings kPackingsAvx512Bf16 = kPackings;

}  // namespace tccl::kernels
