#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <cstring>

#include "kernels/copy.h"
#include "kernels/reduce.h"
#include "kernels/variants.h"

namespace tccl::kernels {
namespace {

/// Rounding to nearest and denormals kept, whatever the calling thread has set: an operation may
/// run on a caller that flushes denormals here and on a driver thread that does not on another
/// rank, and both must get the same bits.
class DefaultRounding {
 public:
#if defined(__SSE__)
  DefaultRounding() : saved_(_mm_getcsr()) {
    if (changed()) _mm_setcsr(kDefault);
  }
  ~DefaultRounding() {
    if (changed()) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kDefault = 0x1f80;  // all exceptions masked, nothing flushed
  static constexpr unsigned kFlags = 0x3f;      // exceptions seen so far: no setting
  [[nodiscard]] bool changed() const { return (saved_ & ~kFlags) != kDefault; }
  unsigned saved_;
#else
  DefaultRounding() {}
#endif
};

}  // namespace

void reduce(void* destination, std::span<const void* const> sources, std::size_t count, DType dtype,
            ReduceOp op, std::span<const double> factors, void* second_destination) {
  const DefaultRounding rounding;
  best_variant().reduce({destination, second_destination, sources.data(), sources.size(), count,
                         factors.data(), dtype, op});
}

void stream(void* to, const void* from, std::size_t bytes) {
  best_variant().stream(static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from),
                        bytes);
}

void copy(void* to, const void* from, std::size_t bytes) {
  constexpr std::size_t kByLibrary = 2048;  // up to here the C library uses vectors as well
  if (bytes <= kByLibrary) {
    if (bytes != 0) std::memcpy(to, from, bytes);
    return;
  }
  best_variant().copy(static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from),
                      bytes);
}

}  // namespace tccl::kernels
