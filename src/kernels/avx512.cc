// Kernels compiled for AVX-512 F, BW, DQ and VL.
#include "kernels/compress_impl.h"
#include "kernels/copy_impl.h"
#include "kernels/reduce_impl.h"

namespace tccl::kernels {

void reduce_avx512(const ReduceArgs& args) { reduce_elements(args); }
void copy_avx512(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  copy_vectors(to, from, bytes);
}
void copy_nontemporal_avx512(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  copy_vectors_nontemporal(to, from, bytes);
}
extern const CompressionKernels kCompressionKernelsAvx512 = kCompressionKernels;

}  // namespace tccl::kernels
