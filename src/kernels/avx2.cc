// Kernels compiled for AVX2 and F16C.
#include "kernels/compress_impl.h"
#include "kernels/copy_impl.h"
#include "kernels/reduce_impl.h"

namespace tccl::kernels {

void reduce_avx2(const ReduceArgs& args) { reduce_elements(args); }
void copy_avx2(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  copy_vectors(to, from, bytes);
}
void copy_nontemporal_avx2(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  copy_vectors_nontemporal(to, from, bytes);
}
extern const CompressionKernels kCompressionKernelsAvx2 = kCompressionKernels;

}  // namespace tccl::kernels
