// The kernels for what every machine of the architecture has.
#include "kernels/copy_impl.h"
#include "kernels/pack_impl.h"
#include "kernels/reduce_impl.h"

namespace tccl::kernels {

void reduce_baseline(const Job& job) { reduce_job(job); }
void copy_baseline(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  copy_vectors(to, from, bytes);
}
void stream_baseline(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  stream_vectors(to, from, bytes);
}
extern const Packings kPackingsBaseline = kPackings;

}  // namespace tccl::kernels
