// Reference for the reduction kernels: plain loops over one element at a time, random inputs, and
// the comparison of results. Shares no code with the kernels.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tccl/types.h"
#include "unit/float_format_definition.h"

namespace tccl {

using Bytes = std::vector<unsigned char>;

// ---- The reference: one element at a time ----

template <typename T>
T read(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <typename T>
void write(unsigned char* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

/// Keeps the compiler from fusing a product into the addition that follows.
template <typename T>
T rounded(T value) {
  volatile T kept = value;
  return kept;
}

struct Case {
  DType dtype;
  ReduceOp op;
};

/// The bytes of one element in each source, in rank order.
using Column = std::vector<const unsigned char*>;

template <typename T>
T smaller_or_nan(T a, T b, bool want_min) {
  if (a != a) return a;
  if (b != b) return b;
  return (want_min ? b < a : b > a) ? b : a;
}

template <typename T>
T reduce_values(ReduceOp op, const std::vector<T>& x, const std::vector<double>& factors) {
  const auto scaled = [&](std::size_t s) {
    return op == ReduceOp::premul_sum ? rounded(x[s] * static_cast<T>(factors[s])) : x[s];
  };
  T result = scaled(0);
  for (std::size_t s = 1; s < x.size(); ++s) {
    if (op == ReduceOp::product) {
      result = rounded(result * x[s]);
    } else if (op == ReduceOp::min || op == ReduceOp::max) {
      result = smaller_or_nan(result, x[s], op == ReduceOp::min);
    } else {
      result = rounded(result + scaled(s));
    }
  }
  return op == ReduceOp::avg ? result / static_cast<T>(x.size()) : result;
}

template <typename T>
void expect_native(ReduceOp op, const Column& column, const std::vector<double>& factors,
                   unsigned char* result) {
  std::vector<T> x;
  for (const unsigned char* element : column) x.push_back(read<T>(element));
  write(result, reduce_values(op, x, factors));
}

template <typename Code>
void expect_narrow(const Format& f, ReduceOp op, const Column& column,
                   const std::vector<double>& factors, unsigned char* result) {
  std::vector<float> x;
  for (const unsigned char* element : column) {
    x.push_back(static_cast<float>(decode(f, read<Code>(element))));
  }
  write(result, static_cast<Code>(encode(f, reduce_values(op, x, factors))));
}

/// Everything modulo 2^64, then cut to the type: addition, multiplication and the bit operations
/// do not care where the upper bits went.
inline std::uint64_t combine_bits(ReduceOp op, std::uint64_t a, std::uint64_t b) {
  switch (op) {
    case ReduceOp::product:
      return a * b;
    case ReduceOp::band:
      return a & b;
    case ReduceOp::bor:
      return a | b;
    case ReduceOp::bxor:
      return a ^ b;
    default:
      return a + b;
  }
}

template <typename T>
void expect_integer(ReduceOp op, const Column& column, const std::vector<double>& factors,
                    unsigned char* result) {
  const auto factor = [&](std::size_t s) -> std::uint64_t {
    if (op != ReduceOp::premul_sum) return 1;
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(factors[s]));
  };
  T ordered = read<T>(column[0]);
  std::uint64_t wrapped = static_cast<std::uint64_t>(ordered) * factor(0);
  for (std::size_t s = 1; s < column.size(); ++s) {
    const T x = read<T>(column[s]);
    ordered = smaller_or_nan(ordered, x, op == ReduceOp::min);
    wrapped = combine_bits(op, wrapped, static_cast<std::uint64_t>(x) * factor(s));
  }
  const bool is_order = op == ReduceOp::min || op == ReduceOp::max;
  write(result, is_order ? ordered : static_cast<T>(wrapped));
}

inline void expect_boolean(ReduceOp op, const Column& column, unsigned char* result) {
  std::size_t trues = 0;
  for (const unsigned char* element : column) trues += *element != 0;
  const bool all = trues == column.size();
  switch (op) {
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::band:
      *result = all;
      return;
    case ReduceOp::bxor:
      *result = trues % 2;
      return;
    default:
      *result = trues > 0;
      return;
  }
}

template <typename T>
void expect_complex(ReduceOp op, const Column& column, const std::vector<double>& factors,
                    unsigned char* result) {
  std::vector<T> real, imag;
  for (const unsigned char* element : column) {
    real.push_back(read<T>(element));
    imag.push_back(read<T>(element + sizeof(T)));
  }
  T re = real[0], im = imag[0];
  for (std::size_t s = 1; s < column.size(); ++s) {
    const T next = rounded(re * real[s]) - rounded(im * imag[s]);
    im = rounded(re * imag[s]) + rounded(im * real[s]);
    re = next;
  }
  const bool is_product = op == ReduceOp::product;
  write(result, is_product ? re : reduce_values(op, real, factors));
  write(result + sizeof(T), is_product ? im : reduce_values(op, imag, factors));
}

inline void expect_element(Case c, const Column& column, const std::vector<double>& factors,
                           unsigned char* result) {
  if (const Format* f = format_of(c.dtype)) {
    return size_of(c.dtype) == 1 ? expect_narrow<std::uint8_t>(*f, c.op, column, factors, result)
                                 : expect_narrow<std::uint16_t>(*f, c.op, column, factors, result);
  }
  switch (c.dtype) {
    case DType::float64:
      return expect_native<double>(c.op, column, factors, result);
    case DType::float32:
      return expect_native<float>(c.op, column, factors, result);
    case DType::int8:
      return expect_integer<std::int8_t>(c.op, column, factors, result);
    case DType::int16:
      return expect_integer<std::int16_t>(c.op, column, factors, result);
    case DType::int32:
      return expect_integer<std::int32_t>(c.op, column, factors, result);
    case DType::int64:
      return expect_integer<std::int64_t>(c.op, column, factors, result);
    case DType::uint8:
      return expect_integer<std::uint8_t>(c.op, column, factors, result);
    case DType::uint16:
      return expect_integer<std::uint16_t>(c.op, column, factors, result);
    case DType::uint32:
      return expect_integer<std::uint32_t>(c.op, column, factors, result);
    case DType::uint64:
      return expect_integer<std::uint64_t>(c.op, column, factors, result);
    case DType::boolean:
      return expect_boolean(c.op, column, result);
    case DType::complex64:
      return expect_complex<float>(c.op, column, factors, result);
    case DType::complex128:
      return expect_complex<double>(c.op, column, factors, result);
    default:
      FAIL() << "no reference for " << name_of(c.dtype);
  }
}

inline Bytes expected(Case c, const std::vector<Bytes>& sources, std::size_t count,
                      const std::vector<double>& factors) {
  const std::size_t bytes = size_of(c.dtype);
  Bytes result(count * bytes);
  for (std::size_t i = 0; i < count; ++i) {
    Column column;
    for (const Bytes& source : sources) column.push_back(source.data() + i * bytes);
    expect_element(c, column, factors, result.data() + i * bytes);
  }
  return result;
}

// ---- Inputs ----

using Random = std::mt19937_64;

inline bool one_in(Random& random, unsigned n) { return random() % n == 0; }

/// Mostly numbers around one, so that sums are not all special; some of everything that is.
template <typename T>
T random_number(Random& random) {
  using Limits = std::numeric_limits<T>;
  static const T kSpecial[] = {0,
                               -T{0},
                               Limits::infinity(),
                               -Limits::infinity(),
                               Limits::quiet_NaN(),
                               Limits::denorm_min(),
                               -Limits::min() / 2,
                               Limits::max(),
                               -Limits::max()};
  if (one_in(random, 12)) return kSpecial[random() % std::size(kSpecial)];
  return std::ldexp(std::uniform_real_distribution<T>(-1, 1)(random),
                    static_cast<int>(random() % 12) - 4);
}

/// Narrow floats are few enough that any code will do, with NaN made rarer.
inline void random_code(const Format& f, Random& random, unsigned char* to) {
  auto code = static_cast<unsigned>(random() % f.code_count());
  if (!std::isfinite(decode(f, code)) && !one_in(random, 4)) code = largest_finite(f);
  size_of(f.dtype) == 1 ? write(to, static_cast<std::uint8_t>(code))
                        : write(to, static_cast<std::uint16_t>(code));
}

template <typename T>
void random_numbers(Random& random, Bytes& bytes) {
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(T)) {
    write(bytes.data() + i, random_number<T>(random));
  }
}

/// Integers: any bits, and half of the elements extreme or small so that ties and overflow occur.
inline void random_integers(Random& random, Bytes& bytes, std::size_t size) {
  static const std::uint64_t kSpecial[] = {0, 1, 2, ~0ull, 1ull << 63, ~(1ull << 63)};
  for (std::size_t i = 0; i < bytes.size(); i += size) {
    std::uint64_t value = one_in(random, 2) ? random() : kSpecial[random() % std::size(kSpecial)];
    if (one_in(random, 4)) value >>= 64 - 8 * size;
    std::memcpy(&bytes[i], &value, size);
  }
}

inline Bytes random_source(DType dtype, std::size_t count, Random& random) {
  const std::size_t size = size_of(dtype);
  Bytes bytes(count * size);
  if (const Format* f = format_of(dtype)) {
    for (std::size_t i = 0; i < bytes.size(); i += size) random_code(*f, random, &bytes[i]);
  } else if (dtype == DType::float32 || dtype == DType::complex64) {
    random_numbers<float>(random, bytes);
  } else if (dtype == DType::float64 || dtype == DType::complex128) {
    random_numbers<double>(random, bytes);
  } else {
    random_integers(random, bytes, size);
  }
  return bytes;
}

inline const std::vector<double> kFactors = {0.5,  -1.0, 3.0, -2.75, 1.0, 0.1, 200.0, -7.0, 0.0,
                                             0.25, 1.5,  2.0, -0.3,  7.0, 1.0, -1.0,  9.0};

// ---- Comparison: the same bits, or both NaN ----

inline bool is_nan_element(DType dtype, const unsigned char* element) {
  if (dtype == DType::float32) return std::isnan(read<float>(element));
  if (dtype == DType::float64) return std::isnan(read<double>(element));
  const Format* f = format_of(dtype);
  if (f == nullptr) return false;
  const unsigned code =
      size_of(dtype) == 1 ? read<std::uint8_t>(element) : read<std::uint16_t>(element);
  return std::isnan(decode(*f, code));
}

inline DType component_of(DType dtype) {
  if (dtype == DType::complex64) return DType::float32;
  return dtype == DType::complex128 ? DType::float64 : dtype;
}

inline std::string hex(const unsigned char* bytes, std::size_t n) {
  std::string text;
  char digits[3];
  for (std::size_t i = n; i-- > 0;) {
    std::snprintf(digits, sizeof(digits), "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

inline testing::AssertionResult same(DType dtype, const unsigned char* actual,
                                     const Bytes& expected) {
  const DType component = component_of(dtype);
  const std::size_t size = size_of(component);
  for (std::size_t i = 0; i < expected.size(); i += size) {
    if (std::memcmp(actual + i, &expected[i], size) == 0) continue;
    if (is_nan_element(component, actual + i) && is_nan_element(component, &expected[i])) continue;
    return testing::AssertionFailure() << "component " << i / size << ": " << hex(actual + i, size)
                                       << ", expected " << hex(&expected[i], size);
  }
  return testing::AssertionSuccess();
}

// ---- Test parameters ----

inline std::vector<const void*> pointers(const std::vector<Bytes>& sources) {
  std::vector<const void*> result;
  for (const Bytes& source : sources) result.push_back(source.data());
  return result;
}

inline std::vector<Case> supported_cases() {
  std::vector<Case> cases;
  for (int d = 0; d < kDTypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const Case c{static_cast<DType>(d), static_cast<ReduceOp>(o)};
      if (supports(c.dtype, c.op)) cases.push_back(c);
    }
  }
  return cases;
}

inline std::string case_name(const testing::TestParamInfo<Case>& info) {
  return std::string(name_of(info.param.dtype)) + "_" + std::string(name_of(info.param.op));
}

}  // namespace tccl
