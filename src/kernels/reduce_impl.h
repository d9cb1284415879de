// The reduction kernels. Each instruction set has a .cc file that includes this header, is compiled
// with its own flags and defines its entry point as `reduce_elements(args)`.
//
// The loop takes one group of vectors at a time: it combines all sources in registers in rank
// order, rounds, and stores. A destination may therefore be one of the sources. With many sources
// (more streams than the hardware prefetchers follow) the loop runs in batches of sources and keeps
// the accumulators of a block of groups on the stack in between.
//
// No standard-library templates, and everything in an unnamed namespace: see float_formats.h.
// Floating-point contraction must be off: FMA would round differently on some instruction sets.
// Thread safety: functions without shared state.
#pragma once

#include <type_traits>

#include "kernels/element_types.h"
#include "kernels/reduce_args.h"

namespace tccl::kernels {
namespace {  // NOLINT(google-build-namespaces): see above

// Operations on vectors. Integers are unsigned where a signed result could overflow.

struct ReduceOperation {
  static constexpr bool kScales = false;    // multiply each source by its factor before combining
  static constexpr bool kAverages = false;  // divide by ReduceArgs::divisor at the end
};

struct Add : ReduceOperation {
  template <typename V>
  static V combine(V a, V b) {
    return a + b;
  }
};

struct Average : Add {
  static constexpr bool kAverages = true;
};

struct ScaledAdd : Add {
  static constexpr bool kScales = true;
};

struct Multiply : ReduceOperation {
  template <typename V>
  static V combine(V a, V b) {
    return a * b;
  }
};

// Complex product of interleaved real and imaginary parts by the plain formula, without C99's
// recovery of infinities. Written without a difference of products, which GCC 12 compiles to
// vfmaddsub (one rounding instead of two) despite -ffp-contract=off.
template <typename T>
struct MultiplyComplex : ReduceOperation {
  using V = Vector<T>;
  static V combine(V a, V b) {
    const V real = permute<T>(
        a, [](std::size_t i) constexpr { return i & ~std::size_t{1}; });
    const V imag = permute<T>(
        a, [](std::size_t i) constexpr { return i | 1; });
    const V crossed = permute<T>(
        b, [](std::size_t i) constexpr { return i ^ 1; });
    return real * b + alternately_negated(imag) * crossed;
  }

 private:
  static V alternately_negated(V v) {
    V signs{};
    for (std::size_t i = 0; i < kLanes<T>; i += 2) signs[i] = -T{0};
    using Bits = Vector<std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>>;
    return reinterpret_cast<V>(reinterpret_cast<Bits>(v) ^ reinterpret_cast<Bits>(signs));
  }
};

struct Min : ReduceOperation {
  template <typename V>
  static V combine(V a, V b) {
    return (b < a) | (b != b) ? b : a;  // NOLINT: NaN is what differs from itself
  }
};

struct Max : ReduceOperation {
  template <typename V>
  static V combine(V a, V b) {
    return (b > a) | (b != b) ? b : a;  // NOLINT: NaN is what differs from itself
  }
};

struct And : ReduceOperation {
  template <typename V>
  static V combine(V a, V b) {
    return a & b;
  }
};

struct Or : ReduceOperation {
  template <typename V>
  static V combine(V a, V b) {
    return a | b;
  }
};

struct Xor : ReduceOperation {
  template <typename V>
  static V combine(V a, V b) {
    return a ^ b;
  }
};

/// The integer part of a factor modulo 2^64; zero if it is NaN or out of range.
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

/// One element type and one operation, in steps of `kGroups` groups.
template <typename Type, typename Op, std::size_t kGroups = 4 / Type::kParts>
struct Kernel {
  static void run(const ReduceArgs& args) { run_from(0, args); }

  /// Reduces the elements from this offset to the end.
  static void run_from(std::size_t offset_bytes, const ReduceArgs& args) {
    const std::size_t end_bytes = args.count * Type::kElementBytes;
    while (end_bytes - offset_bytes >= kStepBytes) {
      const std::size_t steps = (end_bytes - offset_bytes) / kStepBytes;
      const std::size_t block_steps = steps < kBlockSteps ? steps : kBlockSteps;
      run_block(args, offset_bytes, block_steps);
      offset_bytes += block_steps * kStepBytes;
    }
    if (offset_bytes == end_bytes) return;
    if constexpr (kGroups > 1) {
      Kernel<Type, Op, 1>::run_from(offset_bytes, args);
    } else {
      run_rest(args, offset_bytes, end_bytes - offset_bytes);
    }
  }

 private:
  using Accumulator = typename Type::Accumulator;
  static constexpr std::size_t kStepBytes = kGroups * Type::kGroupBytes;
  static constexpr std::size_t kBlockSteps = 64;
  static constexpr std::size_t kBatch = 8;  // sources per pass

  struct Step {
    typename Type::Group group[kGroups];
  };

  /// One source from an offset on, and the factor of its elements.
  struct Input {
    Input() = default;
    Input(const ReduceArgs& args, std::size_t s, std::size_t offset_bytes)
        : elements(static_cast<const unsigned char*>(args.sources[s]) + offset_bytes) {
      if constexpr (Op::kScales) scale = all_lanes(factor_as<Accumulator>(args.factors[s]));
    }
    const unsigned char* elements;
    Vector<Accumulator> scale;
  };

  /// The destinations from an offset on, and the divisor of averages.
  struct Output {
    Output(const ReduceArgs& args, std::size_t offset_bytes)
        : elements(static_cast<unsigned char*>(args.destination) + offset_bytes) {
      if (args.second_destination != nullptr) {
        second = static_cast<unsigned char*>(args.second_destination) + offset_bytes;
      }
      if constexpr (Op::kAverages) divisor = static_cast<Accumulator>(args.divisor);
    }
    unsigned char* elements;
    unsigned char* second = nullptr;
    Accumulator divisor{};
  };

  static void run_block(const ReduceArgs& args, std::size_t offset_bytes, std::size_t steps) {
    const Output output(args, offset_bytes);
    Step block[kBlockSteps];
    Input batch[kBatch];
    for (std::size_t begin = 0; begin < args.source_count; begin += kBatch) {
      const std::size_t rest = args.source_count - begin;
      const std::size_t n = rest < kBatch ? rest : kBatch;
      for (std::size_t i = 0; i < n; ++i) batch[i] = Input(args, begin + i, offset_bytes);
      const bool is_first = begin == 0, is_last = n == rest;
      if (is_last) {
        is_first ? run_batch<true, true>(batch, n, steps, block, output)
                 : run_batch<false, true>(batch, n, steps, block, output);
      } else {
        is_first ? run_batch<true, false>(batch, n, steps, block, output)
                 : run_batch<false, false>(batch, n, steps, block, output);
      }
    }
  }

  /// kFirst: the first source starts the sum, else the earlier batches' accumulators in `block`.
  /// kLast: stores to the destinations, else to `block`.
  template <bool kFirst, bool kLast>
  [[gnu::noinline]] static void run_batch(const Input* batch, std::size_t n, std::size_t steps,
                                          Step* block, const Output& output) {
    for (std::size_t i = 0; i < steps; ++i) {
      Step sum = kFirst ? load(batch[0], i) : block[i];
#pragma GCC unroll 1  // same speed, a quarter less code
      for (std::size_t s = kFirst; s < n; ++s) combine(sum, load(batch[s], i));
      if constexpr (kLast) {
        store(output.elements + i * kStepBytes, sum, output.divisor);
        if (output.second != nullptr) store(output.second + i * kStepBytes, sum, output.divisor);
      } else {
        block[i] = sum;
      }
    }
  }

  /// The last elements, fewer than a step, padded with zeros.
  static void run_rest(const ReduceArgs& args, std::size_t offset_bytes, std::size_t bytes) {
    const auto padded = [&](std::size_t s) {
      Input input(args, s, offset_bytes);
      unsigned char elements[kVectorBytes];
      store_vector(elements, load_partial(input.elements, bytes));
      input.elements = elements;
      return load(input, 0);
    };
    Step sum = padded(0);
    for (std::size_t s = 1; s < args.source_count; ++s) combine(sum, padded(s));
    const Output output(args, offset_bytes);
    static_assert(kStepBytes <= kVectorBytes);
    unsigned char elements[kStepBytes];
    store(elements, sum, output.divisor);
    copy_small(output.elements, elements, bytes);
    if (output.second != nullptr) copy_small(output.second, elements, bytes);
  }

  [[gnu::always_inline]] static Step load(const Input& input, std::size_t i) {
    Step step;
    const unsigned char* from = input.elements + i * kStepBytes;
    for (auto& group : step.group) {
      group = Type::load(from);
      from += Type::kGroupBytes;
      if constexpr (Op::kScales) {
        for (auto& part : group.part) part *= input.scale;
      }
    }
    return step;
  }

  [[gnu::always_inline]] static void combine(Step& sum, const Step& next) {
    for (std::size_t g = 0; g < kGroups; ++g) {
      for (std::size_t k = 0; k < Type::kParts; ++k) {
        auto& part = sum.group[g].part[k];
        part = Op::combine(part, next.group[g].part[k]);
      }
    }
  }

  [[gnu::always_inline]] static void store(unsigned char* to, Step sum,
                                           [[maybe_unused]] Accumulator divisor) {
    for (auto& group : sum.group) {
      if constexpr (Op::kAverages) {
        for (auto& part : group.part) part /= divisor;
      }
      Type::store(to, group);
      to += Type::kGroupBytes;
    }
  }
};

// Dispatch by element type and operation. reduce() requires supports(dtype, op); any other pair is
// a bug in the caller and traps.

template <typename Type>
void reduce_floating(const ReduceArgs& args) {
  switch (args.op) {
    case ReduceOp::sum:
      return Kernel<Type, Add>::run(args);
    case ReduceOp::avg:
      return Kernel<Type, Average>::run(args);
    case ReduceOp::product:
      return Kernel<Type, Multiply>::run(args);
    case ReduceOp::min:
      return Kernel<Type, Min>::run(args);
    case ReduceOp::max:
      return Kernel<Type, Max>::run(args);
    case ReduceOp::premul_sum:
      return Kernel<Type, ScaledAdd>::run(args);
    default:
      __builtin_trap();
  }
}

// Signedness matters for min and max only; all else is the same modulo 2^n.
template <typename T>
void reduce_integer(const ReduceArgs& args) {
  using Wrapping = Native<std::make_unsigned_t<T>>;
  switch (args.op) {
    case ReduceOp::sum:
      return Kernel<Wrapping, Add>::run(args);
    case ReduceOp::product:
      return Kernel<Wrapping, Multiply>::run(args);
    case ReduceOp::min:
      return Kernel<Native<T>, Min>::run(args);
    case ReduceOp::max:
      return Kernel<Native<T>, Max>::run(args);
    case ReduceOp::band:
      return Kernel<Wrapping, And>::run(args);
    case ReduceOp::bor:
      return Kernel<Wrapping, Or>::run(args);
    case ReduceOp::bxor:
      return Kernel<Wrapping, Xor>::run(args);
    case ReduceOp::premul_sum:
      return Kernel<Wrapping, ScaledAdd>::run(args);
    default:
      __builtin_trap();
  }
}

inline void reduce_boolean(const ReduceArgs& args) {
  switch (args.op) {
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bor:
      return Kernel<Boolean, Or>::run(args);
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::band:
      return Kernel<Boolean, And>::run(args);
    case ReduceOp::bxor:
      return Kernel<Boolean, Xor>::run(args);
    default:
      __builtin_trap();
  }
}

// A complex sum is a real sum of twice as many elements.
template <typename T>
void reduce_complex(const ReduceArgs& args) {
  ReduceArgs components = args;
  components.count *= 2;
  switch (args.op) {
    case ReduceOp::sum:
      return Kernel<Native<T>, Add>::run(components);
    case ReduceOp::avg:
      return Kernel<Native<T>, Average>::run(components);
    case ReduceOp::premul_sum:
      return Kernel<Native<T>, ScaledAdd>::run(components);
    case ReduceOp::product:
      return Kernel<Native<T>, MultiplyComplex<T>>::run(components);
    default:
      __builtin_trap();
  }
}

struct DTypeRow {
  DType dtype;
  void (*reduce)(const ReduceArgs&);
};

inline constexpr DTypeRow kRows[kDTypeCount] = {
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

inline void reduce_elements(const ReduceArgs& args) {
  kRows[static_cast<int>(args.dtype)].reduce(args);
}

}  // namespace
}  // namespace tccl::kernels
