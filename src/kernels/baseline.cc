// Kernels compiled for the architecture's baseline instruction set: SSE2 on x86-64, NEON on
// aarch64.
#include "kernels/compress_impl.h"
#include "kernels/copy_impl.h"
#include "kernels/reduce_impl.h"

namespace tccl::kernels {

void reduce_baseline(const ReduceArgs& args) { reduce_elements(args); }
void copy_baseline(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  copy_vectors(to, from, bytes);
}
void copy_nontemporal_baseline(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  copy_vectors_nontemporal(to, from, bytes);
}
extern const CompressionKernels kCompressionKernelsBaseline = kCompressionKernels;

}  // namespace tccl::kernels
