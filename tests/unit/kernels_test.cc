// Every element type x operation x number of sources x awkward counts, against plain loops on
// values decoded and encoded from the definitions of the formats, in double arithmetic. Nothing
// here shares code with the kernels except, in the conversion tests, the functions under test.
#include "kernels/reduce.h"

#include <gtest/gtest.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/float_formats.h"
#include "kernels/variants.h"

namespace tccl {
namespace {

using Bytes = std::vector<unsigned char>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// ---- The narrow floating-point formats, by definition ----

enum class Specials {
  ieee,  // the last exponent holds infinity and NaN
  fn,    // only the code of all ones is NaN; no infinity, saturates
  fnuz,  // only the code of negative zero is NaN; no infinity, no negative zero
};

struct Format {
  DType dtype;
  int exponent_bits, mantissa_bits, bias;
  Specials specials;

  int sign_bit() const { return exponent_bits + mantissa_bits; }
  unsigned code_count() const { return 2u << sign_bit(); }
  unsigned sign_code() const { return 1u << sign_bit(); }
};

constexpr Format kFormats[] = {
    {DType::float16, 5, 10, 15, Specials::ieee},
    {DType::bfloat16, 8, 7, 127, Specials::ieee},
    {DType::float8_e4m3fn, 4, 3, 7, Specials::fn},
    {DType::float8_e5m2, 5, 2, 15, Specials::ieee},
    {DType::float8_e4m3fnuz, 4, 3, 8, Specials::fnuz},
    {DType::float8_e5m2fnuz, 5, 2, 16, Specials::fnuz},
};

const Format* format_of(DType dtype) {
  for (const Format& format : kFormats) {
    if (format.dtype == dtype) return &format;
  }
  return nullptr;
}

double value_by_definition(const Format& f, unsigned code) {
  const unsigned magnitude = code % f.sign_code();
  const int exponent = static_cast<int>(magnitude >> f.mantissa_bits);
  const unsigned mantissa = magnitude % (1u << f.mantissa_bits);
  const double sign = code >= f.sign_code() ? -1.0 : 1.0;
  if (f.specials == Specials::fnuz && code == f.sign_code()) return kNan;
  if (f.specials == Specials::fn && magnitude == f.sign_code() - 1) return kNan;
  if (f.specials == Specials::ieee && exponent == (1 << f.exponent_bits) - 1) {
    return mantissa == 0 ? sign * kInfinity : kNan;
  }
  const double fraction = std::ldexp(mantissa, -f.mantissa_bits);
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - f.bias)
                       : sign * std::ldexp(1.0 + fraction, exponent - f.bias);
}

/// The values of all codes, computed once.
const std::vector<double>& values_of(const Format& f) {
  static const auto tables = [] {
    std::vector<std::vector<double>> result;
    for (const Format& format : kFormats) {
      result.emplace_back();
      for (unsigned code = 0; code < format.code_count(); ++code) {
        result.back().push_back(value_by_definition(format, code));
      }
    }
    return result;
  }();
  return tables[static_cast<std::size_t>(&f - kFormats)];
}

double decode(const Format& f, unsigned code) { return values_of(f)[code]; }

/// Codes of the largest finite number and of a NaN; what a number too large becomes.
unsigned largest_finite(const Format& f) {
  if (f.specials == Specials::ieee) return f.sign_code() - (1u << f.mantissa_bits) - 1;
  return f.sign_code() - (f.specials == Specials::fn ? 2 : 1);
}

unsigned some_nan(const Format& f) {
  return f.specials == Specials::fnuz ? f.sign_code() : f.sign_code() - 1;
}

unsigned overflowed(const Format& f) {
  if (f.specials == Specials::ieee) return largest_finite(f) + 1;
  return f.specials == Specials::fn ? largest_finite(f) : some_nan(f);
}

/// Nearest code of a magnitude by trying all, ties to the even one. The scale goes on one step
/// beyond the largest number: what is nearest to that step has overflowed.
unsigned nearest_by_search(const Format& f, double magnitude) {
  const std::vector<double>& values = values_of(f);
  const unsigned last = largest_finite(f);
  const double beyond = 2 * values[last] - values[last - 1];
  magnitude = std::min(magnitude, beyond);  // next to a huge number all distances look alike
  unsigned best = last + 1;
  double best_distance = beyond - magnitude;
  for (unsigned code = 0; code <= last; ++code) {
    const double distance = std::fabs(values[code] - magnitude);
    if (distance > best_distance || (distance == best_distance && code % 2 != 0)) continue;
    best = code;
    best_distance = distance;
  }
  return best > last ? overflowed(f) : best;
}

/// The same by arithmetic: in units of the last place, std::nearbyint rounds to nearest even.
unsigned nearest_by_arithmetic(const Format& f, double magnitude) {
  if (std::isinf(magnitude)) return overflowed(f);
  const int exponent = std::max(magnitude == 0 ? 1 - f.bias : std::ilogb(magnitude), 1 - f.bias);
  const double units = std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent));
  const int field = exponent + f.bias - 1;  // the leading one of `units` adds the missing 1
  const double code = std::ldexp(field, f.mantissa_bits) + units;
  return code > largest_finite(f) ? overflowed(f) : static_cast<unsigned>(code);
}

unsigned encode(const Format& f, double value) {
  if (std::isnan(value)) return some_nan(f);
  const double magnitude = std::fabs(value);
  const unsigned code =
      f.mantissa_bits > 3 ? nearest_by_arithmetic(f, magnitude) : nearest_by_search(f, magnitude);
  if (f.specials == Specials::fnuz && code == 0) return 0;
  return code | (std::signbit(value) ? f.sign_code() : 0);
}

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
std::uint64_t combine_bits(ReduceOp op, std::uint64_t a, std::uint64_t b) {
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

void expect_boolean(ReduceOp op, const Column& column, unsigned char* result) {
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

void expect_element(Case c, const Column& column, const std::vector<double>& factors,
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

Bytes expected(Case c, const std::vector<Bytes>& sources, std::size_t count,
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

bool one_in(Random& random, unsigned n) { return random() % n == 0; }

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
void random_code(const Format& f, Random& random, unsigned char* to) {
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
void random_integers(Random& random, Bytes& bytes, std::size_t size) {
  static const std::uint64_t kSpecial[] = {0, 1, 2, ~0ull, 1ull << 63, ~(1ull << 63)};
  for (std::size_t i = 0; i < bytes.size(); i += size) {
    std::uint64_t value = one_in(random, 2) ? random() : kSpecial[random() % std::size(kSpecial)];
    if (one_in(random, 4)) value >>= 64 - 8 * size;
    std::memcpy(&bytes[i], &value, size);
  }
}

Bytes random_source(DType dtype, std::size_t count, Random& random) {
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

const std::vector<double> kFactors = {0.5,  -1.0, 3.0, -2.75, 1.0, 0.1, 200.0, -7.0, 0.0,
                                      0.25, 1.5,  2.0, -0.3,  7.0, 1.0, -1.0,  9.0};

// ---- Comparison: the same bits, or both NaN ----

bool is_nan_element(DType dtype, const unsigned char* element) {
  if (dtype == DType::float32) return std::isnan(read<float>(element));
  if (dtype == DType::float64) return std::isnan(read<double>(element));
  const Format* f = format_of(dtype);
  if (f == nullptr) return false;
  const unsigned code =
      size_of(dtype) == 1 ? read<std::uint8_t>(element) : read<std::uint16_t>(element);
  return std::isnan(decode(*f, code));
}

DType component_of(DType dtype) {
  if (dtype == DType::complex64) return DType::float32;
  return dtype == DType::complex128 ? DType::float64 : dtype;
}

std::string hex(const unsigned char* bytes, std::size_t n) {
  std::string text;
  char digits[3];
  for (std::size_t i = n; i-- > 0;) {
    std::snprintf(digits, sizeof(digits), "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

testing::AssertionResult same(DType dtype, const unsigned char* actual, const Bytes& expected) {
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

// ---- The kernels ----

class Kernels : public testing::TestWithParam<Case> {
 protected:
  /// `body` gets random sources and the expected result for every number of sources and count,
  /// once for every variant that this CPU can run.
  template <typename Body>
  void for_each_input(Body body) {
    Random random(20240229);
    for (const std::size_t source_count : {1, 2, 3, 5, 8, 9, 17}) {  // batches of 8
      for (const std::size_t count : {0, 1, 7, 31, 65, 130, 511, 2049}) {
        SCOPED_TRACE(testing::Message() << source_count << " sources, " << count << " elements");
        std::vector<Bytes> sources;
        for (std::size_t s = 0; s < source_count; ++s) {
          sources.push_back(random_source(GetParam().dtype, count, random));
        }
        const Bytes result = expected(GetParam(), sources, count, kFactors);
        for (const kernels::Variant& variant : kernels::variants()) {
          if (!variant.usable()) continue;
          SCOPED_TRACE(variant.name);
          variant_ = &variant;
          std::vector<Bytes> copy = sources;
          body(copy, count, result);
          if (HasFatalFailure()) return;
        }
      }
    }
  }

  static void run(void* destination, const std::vector<const void*>& sources, std::size_t count,
                  void* second_destination = nullptr) {
    variant_->reduce({destination, second_destination, sources.data(), sources.size(), count,
                      kFactors.data(), sources.size(), GetParam().dtype, GetParam().op});
  }

 private:
  static inline const kernels::Variant* variant_ = nullptr;
};

std::vector<const void*> pointers(const std::vector<Bytes>& sources) {
  std::vector<const void*> result;
  for (const Bytes& source : sources) result.push_back(source.data());
  return result;
}

TEST_P(Kernels, MatchReference) {
  for_each_input([](std::vector<Bytes>& sources, std::size_t count, const Bytes& expected) {
    const std::vector<Bytes> before = sources;
    Bytes destination(expected.size() + 1, 0xa5);
    run(destination.data(), pointers(sources), count);
    ASSERT_TRUE(same(GetParam().dtype, destination.data(), expected));
    ASSERT_EQ(destination.back(), 0xa5) << "wrote beyond the end";
    ASSERT_EQ(sources, before);
  });
}

TEST_P(Kernels, WorkInPlaceOfAnySource) {
  for_each_input([](std::vector<Bytes>& sources, std::size_t count, const Bytes& expected) {
    for (std::size_t s = 0; s < sources.size(); ++s) {
      std::vector<Bytes> copies = sources;
      run(copies[s].data(), pointers(copies), count);
      ASSERT_TRUE(same(GetParam().dtype, copies[s].data(), expected)) << "in place of " << s;
    }
  });
}

TEST_P(Kernels, WriteASecondDestination) {
  for_each_input([](std::vector<Bytes>& sources, std::size_t count, const Bytes& expected) {
    const std::vector<const void*> inputs = pointers(sources);
    Bytes first(expected.size() + 1, 0xa5), second(expected.size() + 1, 0xa5);
    run(first.data(), inputs, count, second.data());
    ASSERT_TRUE(same(GetParam().dtype, second.data(), expected));
    ASSERT_EQ(second, first) << "also beyond the end";
    run(first.data(), inputs, count, sources.back().data());
    ASSERT_TRUE(same(GetParam().dtype, first.data(), expected));
    ASSERT_TRUE(same(GetParam().dtype, sources.back().data(), expected)) << "in place";
  });
}

TEST_P(Kernels, WorkOnMisalignedBuffers) {
  for_each_input([](std::vector<Bytes>& sources, std::size_t count, const Bytes& expected) {
    std::vector<const void*> misaligned;
    for (std::size_t s = 0; s < sources.size(); ++s) {
      const std::size_t shift = 1 + 2 * (s % 4);
      sources[s].insert(sources[s].begin(), shift, 0xa5);
      misaligned.push_back(sources[s].data() + shift);
    }
    Bytes destination(expected.size() + 3, 0xa5);
    run(destination.data() + 3, misaligned, count);
    ASSERT_TRUE(same(GetParam().dtype, destination.data() + 3, expected));
  });
}

std::vector<Case> supported_cases() {
  std::vector<Case> cases;
  for (int d = 0; d < kDTypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const Case c{static_cast<DType>(d), static_cast<ReduceOp>(o)};
      if (supports(c.dtype, c.op)) cases.push_back(c);
    }
  }
  return cases;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return std::string(name_of(info.param.dtype)) + "_" + std::string(name_of(info.param.op));
}

INSTANTIATE_TEST_SUITE_P(All, Kernels, testing::ValuesIn(supported_cases()), case_name);

// ---- Variants against the baseline, bit by bit ----

std::vector<unsigned> interesting_codes(const Format& f) {
  const unsigned one = static_cast<unsigned>(f.bias) << f.mantissa_bits;
  const unsigned smallest_normal = 1u << f.mantissa_bits;
  std::vector<unsigned> codes = {0,   1,       smallest_normal - 1, smallest_normal,
                                 one, one + 1, largest_finite(f)};
  for (unsigned code = largest_finite(f) + 1; code < f.sign_code(); code += 1 + code % 97) {
    codes.push_back(code);  // infinity and NaN, some signalling
  }
  for (std::size_t i = 0, n = codes.size(); i < n; ++i) codes.push_back(codes[i] + f.sign_code());
  return codes;
}

Bytes as_elements(DType dtype, const std::vector<unsigned>& codes) {
  const std::size_t size = size_of(dtype);
  Bytes bytes(codes.size() * size);
  for (std::size_t i = 0; i < codes.size(); ++i) std::memcpy(&bytes[i * size], &codes[i], size);
  return bytes;
}

class NarrowKernels : public testing::TestWithParam<Case> {
 protected:
  static Bytes reduced_by(const kernels::Variant& variant, const std::vector<const void*>& sources,
                          std::size_t count) {
    Bytes result(count * size_of(GetParam().dtype));
    variant.reduce({result.data(), nullptr, sources.data(), sources.size(), count, kFactors.data(),
                    sources.size(), GetParam().dtype, GetParam().op});
    return result;
  }

  /// All variants on the same sources. NaN is no exception: it has one code.
  static testing::AssertionResult agree(const std::vector<Bytes>& sources, std::size_t count) {
    const std::size_t size = size_of(GetParam().dtype);
    const Bytes baseline = reduced_by(kernels::variants().front(), pointers(sources), count);
    for (const kernels::Variant& variant : kernels::variants()) {
      if (!variant.usable()) continue;
      const Bytes result = reduced_by(variant, pointers(sources), count);
      for (std::size_t i = 0; i < result.size(); i += size) {
        if (std::memcmp(&result[i], &baseline[i], size) == 0) continue;
        auto failure = testing::AssertionFailure() << variant.name << ": of";
        for (const Bytes& source : sources) failure << " " << hex(&source[i], size);
        return failure << " " << hex(&result[i], size) << ", baseline " << hex(&baseline[i], size);
      }
    }
    return testing::AssertionSuccess();
  }
};

TEST_P(NarrowKernels, HaveTheBitsOfTheBaselineForEveryCode) {
  const DType dtype = GetParam().dtype;
  const Format& f = *format_of(dtype);
  Random random(7);
  std::vector<unsigned> codes(f.code_count());
  for (unsigned code = 0; code < codes.size(); ++code) codes[code] = code;
  const Bytes every = as_elements(dtype, codes);
  ASSERT_TRUE(agree({every}, codes.size()));
  for (const unsigned counterpart : interesting_codes(f)) {
    const Bytes same = as_elements(dtype, std::vector<unsigned>(codes.size(), counterpart));
    ASSERT_TRUE(agree({every, same}, codes.size()));
    ASSERT_TRUE(agree({same, every}, codes.size()));
  }
  for (int round = 0; round < 20; ++round) {
    const auto other = [&] { return random_source(dtype, codes.size(), random); };
    ASSERT_TRUE(agree({every, other()}, codes.size()));
    ASSERT_TRUE(agree({other(), every, other()}, codes.size() - 1));
  }
}

std::vector<Case> narrow_cases() {
  std::vector<Case> cases = supported_cases();
  std::erase_if(cases, [](const Case& c) { return format_of(c.dtype) == nullptr; });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, NarrowKernels, testing::ValuesIn(narrow_cases()), case_name);

template <typename T>
T reduce_pair(T a, T b, DType dtype, ReduceOp op, std::vector<double> factors = {}) {
  const std::vector<const void*> sources = {&a, &b};
  T result;
  kernels::reduce(&result, sources, 1, dtype, op, factors);
  return result;
}

TEST(KernelVariants, TheBestUsableOneIsTaken) {
  const kernels::Variant* last = nullptr;
  for (const kernels::Variant& variant : kernels::variants()) {
    std::printf("%s: %s\n", variant.name, variant.usable() ? "tested" : "not on this CPU");
    if (variant.usable()) last = &variant;
  }
  EXPECT_TRUE(kernels::variants().front().usable());
  EXPECT_EQ(&kernels::best_variant(), last);
}

TEST(KernelSemantics, MinAndMaxKeepTheEarlierOfEquals) {
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    EXPECT_FALSE(std::signbit(reduce_pair(0.0f, -0.0f, DType::float32, op)));
    EXPECT_TRUE(std::signbit(reduce_pair(-0.0f, 0.0f, DType::float32, op)));
  }
}

TEST(KernelSemantics, MinAndMaxPropagateNanFromEitherSide) {
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    EXPECT_TRUE(std::isnan(reduce_pair(kNan, 1.0, DType::float64, op)));
    EXPECT_TRUE(std::isnan(reduce_pair(1.0, kNan, DType::float64, op)));
  }
}

TEST(KernelSemantics, NarrowFloatsAreRoundedOnce) {
  // In float16, 2048 + 1 is 2048 again; summed in float32 the ones survive.
  const std::vector<std::uint16_t> values = {0x6800, 0x3c00, 0x3c00};
  const std::vector<const void*> sources = {&values[0], &values[1], &values[2]};
  std::uint16_t result = 0;
  kernels::reduce(&result, sources, 1, DType::float16, ReduceOp::sum, {});
  EXPECT_EQ(result, 0x6801);  // 2050
}

#if defined(__SSE__)
TEST(KernelSemantics, FlushingDenormalsOnTheCallersThreadChangesNothing) {
  const float smallest = std::numeric_limits<float>::denorm_min();
  const void* sources[] = {&smallest, &smallest};
  float result = 0;
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040);  // flush to zero, denormals are zero
  kernels::reduce(&result, sources, 1, DType::float32, ReduceOp::sum, {});
  const unsigned after = _mm_getcsr();
  _mm_setcsr(saved);
  EXPECT_EQ(result, 2 * smallest);
  EXPECT_EQ(after & 0x8040U, 0x8040U) << "the caller's setting must be left alone";
}
#endif

TEST(KernelSemantics, AverageDividesTruly) {
  const float x = 3.0f;
  ASSERT_NE(7 * x * (1.0f / 7), x) << "this number must tell division from the inverse";
  const std::vector<const void*> sources(7, &x);
  float result = 0;
  kernels::reduce(&result, sources, 1, DType::float32, ReduceOp::avg, {});
  EXPECT_EQ(result, x);
}

TEST(KernelSemantics, IntegerFactorsAreCutToIntegersAndWrap) {
  const auto scaled = [](std::uint8_t x, double factor) {
    return reduce_pair<std::uint8_t>(x, 0, DType::uint8, ReduceOp::premul_sum, {factor, 1.0});
  };
  EXPECT_EQ(scaled(3, 2.9), 6);
  EXPECT_EQ(scaled(3, -1.0), 253);
  EXPECT_EQ(scaled(3, 257.0), 3);
  EXPECT_EQ(scaled(3, kNan), 0);
  EXPECT_EQ(scaled(3, kInfinity), 0);
  EXPECT_EQ(scaled(3, -1e300), 0);
}

TEST(KernelSemantics, UnsignedFactorsReachBeyondTheSignedRange) {
  const double factor = 9223372036854775808.0;
  EXPECT_EQ(reduce_pair<std::uint64_t>(1, 0, DType::uint64, ReduceOp::premul_sum, {factor, 1.0}),
            1ull << 63);
}

TEST(KernelSemantics, ComplexProductIsThePlainFormula) {
  struct C {
    float re, im;
  };
  // The standard library's product would be recovered to infinity here.
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const C c = reduce_pair<C>({kInf, kInf}, {1, 1}, DType::complex64, ReduceOp::product);
  EXPECT_TRUE(std::isnan(c.re));
  EXPECT_EQ(c.im, kInf);
}

// ---- Conversions ----

struct Converter {
  const Format& format;
  unsigned (*encode)(float);
  float (*decode)(unsigned);
};

template <typename F>
Converter converter(DType dtype) {
  return {*format_of(dtype), [](float value) -> unsigned { return F::encode(value); },
          [](unsigned code) { return F::decode(static_cast<typename F::Code>(code)); }};
}

std::vector<Converter> converters() {
  return {converter<kernels::Float16>(DType::float16),
          converter<kernels::BFloat16>(DType::bfloat16),
          converter<kernels::Float8E4m3fn>(DType::float8_e4m3fn),
          converter<kernels::Float8E5m2>(DType::float8_e5m2),
          converter<kernels::Float8E4m3fnuz>(DType::float8_e4m3fnuz),
          converter<kernels::Float8E5m2fnuz>(DType::float8_e5m2fnuz)};
}

class Conversions : public testing::TestWithParam<Converter> {
 protected:
  const Converter& c_ = GetParam();
  const Format& f_ = c_.format;

  /// Both signs of a magnitude.
  void expect_code(float magnitude, unsigned code) {
    EXPECT_EQ(c_.encode(magnitude), code) << magnitude;
    const bool signless = f_.specials == Specials::fnuz && (code == 0 || code == f_.sign_code());
    EXPECT_EQ(c_.encode(-magnitude), signless ? code : code | f_.sign_code()) << -magnitude;
  }
};

TEST_P(Conversions, DecodeEveryCode) {
  for (unsigned code = 0; code < f_.code_count(); ++code) {
    const double value = decode(f_, code);
    const float decoded = c_.decode(code);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(decoded)) << code;
    } else {
      ASSERT_EQ(decoded, value) << code;
      ASSERT_EQ(std::signbit(decoded), std::signbit(value)) << code;
    }
  }
}

TEST_P(Conversions, EveryCodeComesBack) {
  for (unsigned code = 0; code < f_.code_count(); ++code) {
    const unsigned again = c_.encode(c_.decode(code));
    if (std::isnan(decode(f_, code))) {
      ASSERT_TRUE(std::isnan(decode(f_, again))) << code;
    } else {
      ASSERT_EQ(again, code);
    }
  }
}

TEST_P(Conversions, MidpointsGoToTheEvenCode) {
  for (unsigned code = 0; code < largest_finite(f_); ++code) {
    const auto middle = static_cast<float>((decode(f_, code) + decode(f_, code + 1)) / 2);
    ASSERT_EQ(middle, (decode(f_, code) + decode(f_, code + 1)) / 2) << "not exact";
    expect_code(middle, code + code % 2);
    expect_code(std::nextafter(middle, 0.0f), code);
    expect_code(std::nextafter(middle, INFINITY), code + 1);
    if (HasFailure()) return;
  }
}

TEST_P(Conversions, OverflowBeginsHalfAStepAboveTheLargest) {
  const unsigned last = largest_finite(f_);
  const double step = decode(f_, last) - decode(f_, last - 1);
  const auto boundary = static_cast<float>(decode(f_, last) + step / 2);
  expect_code(std::nextafter(boundary, 0.0f), last);
  expect_code(boundary, last % 2 == 0 ? last : overflowed(f_));
  expect_code(std::nextafter(boundary, INFINITY), overflowed(f_));
  expect_code(std::numeric_limits<float>::max(), overflowed(f_));
  expect_code(INFINITY, overflowed(f_));
}

TEST_P(Conversions, AgreeWithTheDefinitionAcrossAllFloats) {
  constexpr std::uint32_t kStride = 10007;  // prime, so that all low bits are met
  for (std::uint64_t bits = 0; bits <= UINT32_MAX; bits += kStride) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(c_.encode(value), encode(f_, value)) << value;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Conversions, testing::ValuesIn(converters()), [](const auto& tested) {
  return std::string(name_of(tested.param.format.dtype));
});

TEST(Conversion, NanIsOneCodeOfEachFormat) {
  const auto nan = std::bit_cast<float>(0x7f800001u);  // signalling, the smallest payload
  EXPECT_EQ(kernels::Float16::encode(nan), 0x7e00);
  EXPECT_EQ(kernels::Float16::encode(-nan), 0x7e00);
  EXPECT_EQ(kernels::BFloat16::encode(nan), 0x7fc0);
  EXPECT_EQ(kernels::BFloat16::encode(-nan), 0x7fc0);
  EXPECT_EQ(kernels::Float8E4m3fn::encode(nan), 0x7f);
  EXPECT_EQ(kernels::Float8E4m3fn::encode(-nan), 0x7f);
  EXPECT_EQ(kernels::Float8E5m2::encode(nan), 0x7f);
  EXPECT_EQ(kernels::Float8E5m2::encode(-nan), 0x7f);
  EXPECT_EQ(kernels::Float8E4m3fnuz::encode(-nan), 0x80);
  EXPECT_EQ(kernels::Float8E5m2fnuz::encode(-nan), 0x80);
}

// ---- Copies ----

TEST(Copy, MovesEveryByteAndNoOtherAtAnyAddress) {
  constexpr std::size_t kMost = 5000;
  Bytes from(kMost + 64);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 7 + 1);
  for (const kernels::Variant& variant : kernels::variants()) {
    if (!variant.usable()) continue;
    for (const std::size_t bytes : {0, 1, 15, 63, 64, 65, 255, 256, 257, 1023, 2049, 4096, 5000})
      for (const std::size_t offset : {0, 1, 8, 16, 63}) {
        Bytes expected(kMost + 128, 0xee);
        std::copy_n(from.begin() + static_cast<long>(offset / 2), bytes,
                    expected.begin() + static_cast<long>(offset));
        for (const auto copy : {variant.copy, variant.stream}) {
          Bytes to(expected.size(), 0xee);
          copy(to.data() + offset, from.data() + offset / 2, bytes);
          EXPECT_EQ(to, expected) << variant.name << ", " << bytes << " bytes at " << offset;
        }
      }
  }
}

// ---- The tables of types ----

TEST(Types, HaveTorchsNamesAndSizes) {
  EXPECT_EQ(name_of(DType::float8_e4m3fn), "float8_e4m3fn");
  EXPECT_EQ(name_of(DType::boolean), "bool");
  EXPECT_EQ(name_of(DType::complex128), "complex128");
  EXPECT_EQ(size_of(DType::bfloat16), 2u);
  EXPECT_EQ(size_of(DType::complex128), kMaxElementBytes);
  EXPECT_EQ(name_of(ReduceOp::premul_sum), "premul_sum");
}

TEST(Types, SupportWhatHasAMeaning) {
  EXPECT_TRUE(supports(DType::boolean, ReduceOp::sum));
  EXPECT_FALSE(supports(DType::boolean, ReduceOp::premul_sum));
  EXPECT_FALSE(supports(DType::int32, ReduceOp::avg));
  EXPECT_TRUE(supports(DType::complex64, ReduceOp::avg));
  EXPECT_FALSE(supports(DType::complex64, ReduceOp::max));
  EXPECT_FALSE(supports(DType::float32, ReduceOp::bxor));
  EXPECT_TRUE(supports(DType::uint64, ReduceOp::band));
}

}  // namespace
}  // namespace tccl
