#include "kernels/variants.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tccl::kernels {

void reduce_baseline(const ReduceArgs& args);
void reduce_avx2(const ReduceArgs& args);
void reduce_avx512(const ReduceArgs& args);
void reduce_avx512_bf16(const ReduceArgs& args);
void copy_baseline(unsigned char* to, const unsigned char* from, std::size_t bytes);
void copy_nontemporal_baseline(unsigned char* to, const unsigned char* from, std::size_t bytes);
void copy_avx2(unsigned char* to, const unsigned char* from, std::size_t bytes);
void copy_nontemporal_avx2(unsigned char* to, const unsigned char* from, std::size_t bytes);
void copy_avx512(unsigned char* to, const unsigned char* from, std::size_t bytes);
void copy_nontemporal_avx512(unsigned char* to, const unsigned char* from, std::size_t bytes);
void copy_avx512_bf16(unsigned char* to, const unsigned char* from, std::size_t bytes);
void copy_nontemporal_avx512_bf16(unsigned char* to, const unsigned char* from, std::size_t bytes);
extern const CompressionKernels kCompressionKernelsBaseline, kCompressionKernelsAvx2,
    kCompressionKernelsAvx512, kCompressionKernelsAvx512Bf16;

namespace {

bool always() { return true; }

#if defined(__x86_64__)
bool has_f16c() {  // by cpuid: clang's __builtin_cpu_supports does not know this name
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
bool has_avx2() { return __builtin_cpu_supports("avx2") && has_f16c(); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

#if defined(__aarch64__)
constexpr const char* kBaselineName = "neon";
#else
constexpr const char* kBaselineName = "baseline";
#endif

constexpr Variant kVariants[] = {
    {kBaselineName, always, reduce_baseline, copy_baseline, copy_nontemporal_baseline,
     &kCompressionKernelsBaseline},
#if defined(__x86_64__)
    {"avx2", has_avx2, reduce_avx2, copy_avx2, copy_nontemporal_avx2, &kCompressionKernelsAvx2},
    {"avx512", has_avx512, reduce_avx512, copy_avx512, copy_nontemporal_avx512,
     &kCompressionKernelsAvx512},
    {"avx512_bf16", has_avx512_bf16, reduce_avx512_bf16, copy_avx512_bf16,
     copy_nontemporal_avx512_bf16, &kCompressionKernelsAvx512Bf16},
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
