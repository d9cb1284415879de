#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <cstring>

#include "kernels/copy.h"
#include "kernels/pack.h"
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

const Packing& packing_of(WireFormat format) {
  const Packings& packings = *best_variant().packings;
  return format == WireFormat::int8 ? packings.int8 : packings.bfloat16;
}

}  // namespace

void reduce(void* destination, std::span<const void* const> sources, std::size_t count, DType dtype,
            ReduceOp op, std::span<const double> factors, void* second_destination,
            std::size_t divisor) {
  const DefaultRounding rounding;
  best_variant().reduce({destination, second_destination, sources.data(), sources.size(), count,
                         factors.data(), divisor != 0 ? divisor : sources.size(), dtype, op});
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

std::size_t packed_bytes(WireFormat format, std::size_t count) {
  switch (format) {
    case WireFormat::by_setting:  // whoever packs has looked it up
    case WireFormat::same:
      return count * sizeof(float);
    case WireFormat::bfloat16:
      return count * 2;
    case WireFormat::int8:
      return count + (count + kPackBlock - 1) / kPackBlock * sizeof(float);
  }
  __builtin_trap();
}

void pack(void* to, const float* from, std::size_t count, WireFormat format) {
  if (format == WireFormat::same) return copy(to, from, count * sizeof(float));
  const DefaultRounding rounding;
  packing_of(format).pack(static_cast<unsigned char*>(to),
                          reinterpret_cast<const unsigned char*>(from), count);
}

void unpack(float* to, const void* from, std::size_t count, WireFormat format) {
  if (format == WireFormat::same) return copy(to, from, count * sizeof(float));
  const DefaultRounding rounding;
  packing_of(format).unpack(reinterpret_cast<unsigned char*>(to),
                            static_cast<const unsigned char*>(from), count);
}

}  // namespace tccl::kernels
