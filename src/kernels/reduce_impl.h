// The one source of the reduction kernels: each instruction set has a .cc that includes this file,
// is compiled with its own flags and defines its entry point as `reduce_job(job)`.
//
// A block of accumulators lives on the stack, small enough for the first-level cache. Each source
// is combined into it in turn and the block is rounded and stored once, so any number of sources
// is handled in rank order, each read once, and the destination may be one of them.
//
// No library templates here and an unnamed namespace around the code: see float_formats.h.
// Floating-point contraction must be off, or instruction sets with FMA would round differently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/float_formats.h"
#include "tccl/types.h"

namespace tccl::kernels {

/// The arguments of reduce(), without library types.
struct Job {
  void* destination;
  const void* const* sources;
  std::size_t source_count;
  std::size_t count;
  const double* factors;
  DType dtype;
  ReduceOp op;
};

namespace {  // NOLINT(google-build-namespaces): see above

inline constexpr std::size_t kBlock = 512;

// Element types: how an element is stored and what it is accumulated in.

template <typename T>
struct Native {
  using Storage = T;
  using Accumulator = T;
  static T load(T value) { return value; }
  static T store(T value) { return value; }
};

template <typename Format>
struct Narrow {
  using Storage = typename Format::Code;
  using Accumulator = float;
  static float load(Storage code) { return Format::decode(code); }
  static Storage store(float value) { return Format::encode(value); }
};

struct Boolean {
  using Storage = std::uint8_t;
  using Accumulator = std::uint8_t;
  static Accumulator load(Storage value) { return value != 0; }
  static Storage store(Accumulator value) { return value; }
};

template <typename T>
struct Complex {
  T real, imag;
};

// Operations. Integers come as unsigned where a signed result could overflow, and are cast back
// because C++ computes 8 and 16 bits as int.

struct Operation {
  static constexpr bool kScales = false;    // each source by its own factor, first
  static constexpr bool kAverages = false;  // divide by the number of sources, last
};

struct Add : Operation {
  template <typename T>
  static T combine(T a, T b) {
    return static_cast<T>(a + b);
  }
};

struct Average : Add {
  static constexpr bool kAverages = true;
};

struct ScaledAdd : Add {
  static constexpr bool kScales = true;
};

struct Multiply : Operation {
  template <typename T>
  static T combine(T a, T b) {
    // 1u: two 16-bit operands would be multiplied as int, and overflow it.
    if constexpr (std::is_integral_v<T>) return static_cast<T>(1u * a * b);
    return a * b;
  }

  // The plain formula: no second look at infinities. Written without a difference of products,
  // which GCC 12 turns into vfmaddsub, rounding once too little, whatever -ffp-contract says.
  template <typename T>
  static Complex<T> combine(Complex<T> a, Complex<T> b) {
    return {a.real * b.real + -a.imag * b.imag, a.real * b.imag + a.imag * b.real};
  }
};

struct Min : Operation {
  template <typename T>
  static T combine(T a, T b) {
    return (b < a) | (b != b) ? b : a;  // NOLINT: NaN is what differs from itself
  }
};

struct Max : Operation {
  template <typename T>
  static T combine(T a, T b) {
    return (b > a) | (b != b) ? b : a;  // NOLINT: NaN is what differs from itself
  }
};

struct And : Operation {
  template <typename T>
  static T combine(T a, T b) {
    return static_cast<T>(a & b);
  }
};

struct Or : Operation {
  template <typename T>
  static T combine(T a, T b) {
    return static_cast<T>(a | b);
  }
};

struct Xor : Operation {
  template <typename T>
  static T combine(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

/// The integer part of a factor, modulo 2^64; zero where there is none.
inline std::uint64_t integer_factor(double factor) {
  constexpr double kTwo63 = 9223372036854775808.0;
  if (factor >= -kTwo63 && factor < kTwo63) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(factor));
  }
  return factor >= kTwo63 && factor < 2 * kTwo63 ? static_cast<std::uint64_t>(factor) : 0;
}

template <typename T>
T factor_as(double factor) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(integer_factor(factor));
  return static_cast<T>(factor);
}

/// One element type and one operation.
template <typename Type, typename Op>
struct Kernel {
  using Storage = typename Type::Storage;
  using Accumulator = typename Type::Accumulator;

  static void run(const Job& job) {
    for (std::size_t begin = 0; begin < job.count; begin += kBlock) {
      const std::size_t rest = job.count - begin;
      run_block(job, begin * sizeof(Storage), rest < kBlock ? rest : kBlock);
    }
  }

 private:
  /// A source from the block's first element on, and what its elements are multiplied by.
  struct Input {
    Input(const Job& job, std::size_t s, std::size_t offset_bytes)
        : elements(static_cast<const unsigned char*>(job.sources[s]) + offset_bytes) {
      if constexpr (Op::kScales) scale = factor_as<Accumulator>(job.factors[s]);
    }

    Accumulator operator[](std::size_t i) const {
      Storage stored;
      std::memcpy(&stored, elements + i * sizeof(stored), sizeof(stored));  // may be misaligned
      const Accumulator value = Type::load(stored);
      if constexpr (Op::kScales) return Multiply::combine(value, scale);
      return value;
    }

    const unsigned char* elements;
    Accumulator scale{};
  };

  static void run_block(const Job& job, std::size_t offset_bytes, std::size_t n) {
    Accumulator block[kBlock];
    const auto input = [&](std::size_t s) { return Input(job, s, offset_bytes); };
    if (job.source_count == 1) {
      start(block, input(0), n);
    } else {
      start(block, input(0), input(1), n);
    }
    for (std::size_t s = 2; s < job.source_count; ++s) combine(block, input(s), n);
    if constexpr (Op::kAverages) divide(block, n, job.source_count);
    store(static_cast<unsigned char*>(job.destination) + offset_bytes, block, n);
  }

  static void start(Accumulator* block, Input first, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) block[i] = first[i];
  }

  // Two at once spares a pass over the block, a third of the time where there are but two.
  static void start(Accumulator* block, Input first, Input second, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) block[i] = Op::combine(first[i], second[i]);
  }

  // Not inlined: as a nest of loops over sources and elements, GCC would interleave the sources
  // (unroll and jam), which halves the speed.
  [[gnu::noinline]] static void combine(Accumulator* __restrict block, Input next, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) block[i] = Op::combine(block[i], next[i]);
  }

  static void divide(Accumulator* block, std::size_t n, std::size_t source_count) {
    const auto divisor = static_cast<Accumulator>(source_count);
    for (std::size_t i = 0; i < n; ++i) block[i] /= divisor;
  }

  static void store(unsigned char* destination, const Accumulator* block, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      const Storage value = Type::store(block[i]);
      std::memcpy(destination + i * sizeof(value), &value, sizeof(value));
    }
  }
};

// Which kernel serves which element type and operation. reduce() requires supports(), so anything
// else is a defect of the caller that must not pass for a result.

template <typename Type>
void reduce_floating(const Job& job) {
  switch (job.op) {
    case ReduceOp::sum:
      return Kernel<Type, Add>::run(job);
    case ReduceOp::avg:
      return Kernel<Type, Average>::run(job);
    case ReduceOp::product:
      return Kernel<Type, Multiply>::run(job);
    case ReduceOp::min:
      return Kernel<Type, Min>::run(job);
    case ReduceOp::max:
      return Kernel<Type, Max>::run(job);
    case ReduceOp::premul_sum:
      return Kernel<Type, ScaledAdd>::run(job);
    default:
      __builtin_trap();
  }
}

// Only order tells signed from unsigned: modulo 2^n all else has the same bits.
template <typename T>
void reduce_integer(const Job& job) {
  using Wrapping = Native<std::make_unsigned_t<T>>;
  switch (job.op) {
    case ReduceOp::sum:
      return Kernel<Wrapping, Add>::run(job);
    case ReduceOp::product:
      return Kernel<Wrapping, Multiply>::run(job);
    case ReduceOp::min:
      return Kernel<Native<T>, Min>::run(job);
    case ReduceOp::max:
      return Kernel<Native<T>, Max>::run(job);
    case ReduceOp::band:
      return Kernel<Wrapping, And>::run(job);
    case ReduceOp::bor:
      return Kernel<Wrapping, Or>::run(job);
    case ReduceOp::bxor:
      return Kernel<Wrapping, Xor>::run(job);
    case ReduceOp::premul_sum:
      return Kernel<Wrapping, ScaledAdd>::run(job);
    default:
      __builtin_trap();
  }
}

inline void reduce_boolean(const Job& job) {
  switch (job.op) {
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bor:
      return Kernel<Boolean, Or>::run(job);
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::band:
      return Kernel<Boolean, And>::run(job);
    case ReduceOp::bxor:
      return Kernel<Boolean, Xor>::run(job);
    default:
      __builtin_trap();
  }
}

// Sums treat the two components alike, so they are the real kernels on twice as many elements.
template <typename T>
void reduce_complex(const Job& job) {
  Job components = job;
  components.count *= 2;
  switch (job.op) {
    case ReduceOp::sum:
      return Kernel<Native<T>, Add>::run(components);
    case ReduceOp::avg:
      return Kernel<Native<T>, Average>::run(components);
    case ReduceOp::premul_sum:
      return Kernel<Native<T>, ScaledAdd>::run(components);
    case ReduceOp::product:
      return Kernel<Native<Complex<T>>, Multiply>::run(job);
    default:
      __builtin_trap();
  }
}

struct Row {
  DType dtype;
  void (*reduce)(const Job&);
};

inline constexpr Row kRows[kDTypeCount] = {
    {DType::float64, reduce_floating<Native<double>>},
    {DType::float32, reduce_floating<Native<float>>},
    {DType::float16, reduce_floating<Narrow<Float16>>},
    {DType::bfloat16, reduce_floating<Narrow<BFloat16>>},
    {DType::float8_e4m3fn, reduce_floating<Narrow<Float8E4m3fn>>},
    {DType::float8_e5m2, reduce_floating<Narrow<Float8E5m2>>},
    {DType::float8_e4m3fnuz, reduce_floating<Narrow<Float8E4m3fnuz>>},
    {DType::float8_e5m2fnuz, reduce_floating<Narrow<Float8E5m2fnuz>>},
    {DType::int8, reduce_integer<std::int8_t>},
    {DType::int16, reduce_integer<std::int16_t>},
    {DType::int32, reduce_integer<std::int32_t>},
    {DType::int64, reduce_integer<std::int64_t>},
    {DType::uint8, reduce_integer<std::uint8_t>},
    {DType::uint16, reduce_integer<std::uint16_t>},
    {DType::uint32, reduce_integer<std::uint32_t>},
    {DType::uint64, reduce_integer<std::uint64_t>},
    {DType::boolean, reduce_boolean},
    {DType::complex64, reduce_complex<float>},
    {DType::complex128, reduce_complex<double>},
};

constexpr bool rows_match_enumerators() {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kRows[i].dtype != static_cast<DType>(i)) return false;
  }
  return true;
}
static_assert(rows_match_enumerators());

inline void reduce_job(const Job& job) { kRows[static_cast<int>(job.dtype)].reduce(job); }

}  // namespace
}  // namespace tccl::kernels
