#include "kernels/variants.h"

namespace tccl::kernels {

void reduce_baseline(const Job& job);
void reduce_avx2(const Job& job);
void reduce_avx512(const Job& job);

namespace {

bool always() { return true; }

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2"); }
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

constexpr Variant kVariants[] = {
    {"baseline", always, reduce_baseline},
#if defined(__x86_64__)
    {"avx2", has_avx2, reduce_avx2},
    {"avx512", has_avx512, reduce_avx512},
#endif
};

const Variant& last_usable() {
  const Variant* best = kVariants;
  for (const Variant& variant : kVariants)
    if (variant.usable()) best = &variant;
  return *best;
}

}  // namespace

std::span<const Variant> variants() { return kVariants; }

const Variant& best_variant() {
  static const Variant& best = last_usable();
  return best;
}

}  // namespace tccl::kernels
