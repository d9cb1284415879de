// The arithmetic of the reference: decode, combine in rank order, encode, one element at a time.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <stdexcept>
#include <type_traits>

#include "formats.h"
#include "reference.h"

namespace conformance {

using tccl::DType;
using tccl::ReduceOp;

namespace {

/// Stops the compiler from fusing a product with the addition that uses it, which rounds once
/// instead of twice.
template <typename T>
T rounded(T value) {
  const volatile T kept = value;
  return kept;
}

/// NaN wins whichever side it is on; on a tie (0.0 and -0.0) the earlier rank's value stays.
template <typename T>
T combine(ReduceOp op, T earlier, T later) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
    case ReduceOp::premul_sum:
      return earlier + later;
    case ReduceOp::product:
      return earlier * later;
    case ReduceOp::min:
      if (std::isnan(earlier) || std::isnan(later)) return earlier + later;
      return later < earlier ? later : earlier;
    case ReduceOp::max:
      if (std::isnan(earlier) || std::isnan(later)) return earlier + later;
      return later > earlier ? later : earlier;
    default:
      throw std::logic_error("no bit operations on floating point");
  }
}

/// float32 and float64 are the machine's own; the others go through their definition.
template <typename T>
T load_real(const FloatFormat& format, const std::byte* from) {
  if (format.bits == static_cast<int>(8 * sizeof(T))) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  return static_cast<T>(decode(format, load_code(from, static_cast<std::size_t>(format.bits) / 8)));
}

template <typename T>
void store_real(const FloatFormat& format, std::byte* to, T value) {
  if (format.bits == static_cast<int>(8 * sizeof(T))) {
    std::memcpy(to, &value, sizeof value);
    return;
  }
  store_code(to, encode(format, static_cast<double>(value)),
             static_cast<std::size_t>(format.bits) / 8);
}

/// One element of all ranks: its address and its factor.
struct Column {
  const Scenario& scenario;
  std::span<const Bytes> inputs;
  std::size_t at;

  [[nodiscard]] const std::byte* of(std::size_t rank) const { return inputs[rank].data() + at; }
  [[nodiscard]] bool premultiplied() const { return scenario.reduction == ReduceOp::premul_sum; }
};

template <typename T>
T scaled(const Column& column, std::size_t rank, T value) {
  if (!column.premultiplied()) return value;
  return rounded(value * static_cast<T>(column.scenario.factors[rank]));
}

template <typename T>
void reduce_real(const Column& column, const FloatFormat& format, std::byte* out) {
  const auto value = [&](std::size_t rank) {
    return scaled(column, rank, load_real<T>(format, column.of(rank)));
  };
  T result = value(0);
  for (std::size_t rank = 1; rank < column.inputs.size(); ++rank) {
    result = combine(column.scenario.reduction, result, value(rank));
  }
  if (column.scenario.reduction == ReduceOp::avg) {
    result = result / static_cast<T>(column.scenario.size);
  }
  store_real(format, out, result);
}

template <typename T>
struct Complex {
  T real;
  T imaginary;
};

template <typename T>
Complex<T> combine_complex(ReduceOp op, Complex<T> a, Complex<T> b) {
  if (op != ReduceOp::product) return {a.real + b.real, a.imaginary + b.imaginary};
  return {rounded(a.real * b.real) - rounded(a.imaginary * b.imaginary),
          rounded(a.real * b.imaginary) + rounded(a.imaginary * b.real)};
}

template <typename T>
void reduce_complex(const Column& column, std::byte* out) {
  const auto value = [&](std::size_t rank) {
    Complex<T> z;
    std::memcpy(&z, column.of(rank), sizeof z);
    return Complex<T>{scaled(column, rank, z.real), scaled(column, rank, z.imaginary)};
  };
  Complex<T> result = value(0);
  for (std::size_t rank = 1; rank < column.inputs.size(); ++rank) {
    result = combine_complex(column.scenario.reduction, result, value(rank));
  }
  if (column.scenario.reduction == ReduceOp::avg) {
    const T ranks = static_cast<T>(column.scenario.size);
    result = {result.real / ranks, result.imaginary / ranks};
  }
  std::memcpy(out, &result, sizeof result);
}

/// Integers wrap, so sums and products may be formed modulo 2^64 and cut to their width at the end.
std::uint64_t sign_extended(std::uint64_t code, std::size_t bytes) {
  const std::uint64_t sign = std::uint64_t{1} << (8 * bytes - 1);
  return (code ^ sign) - sign;
}

bool less(DType dtype, std::uint64_t a, std::uint64_t b) {
  if (!is_signed_integer(dtype)) return a < b;
  return static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b);
}

std::uint64_t combine_integers(DType dtype, ReduceOp op, std::uint64_t a, std::uint64_t b) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::premul_sum:
      return a + b;
    case ReduceOp::product:
      return a * b;
    case ReduceOp::min:
      return less(dtype, b, a) ? b : a;
    case ReduceOp::max:
      return less(dtype, a, b) ? b : a;
    case ReduceOp::band:
      return a & b;
    case ReduceOp::bor:
      return a | b;
    case ReduceOp::bxor:
      return a ^ b;
    case ReduceOp::avg:
      break;
  }
  throw std::logic_error("no average of integers");
}

void reduce_integer(const Column& column, std::byte* out) {
  const DType dtype = column.scenario.dtype;
  const std::size_t bytes = element_bytes(dtype);
  const auto value = [&](std::size_t rank) {
    std::uint64_t code = load_code(column.of(rank), bytes);
    if (is_signed_integer(dtype)) code = sign_extended(code, bytes);
    if (!column.premultiplied()) return code;
    return code *
           static_cast<std::uint64_t>(static_cast<std::int64_t>(column.scenario.factors[rank]));
  };
  std::uint64_t result = value(0);
  for (std::size_t rank = 1; rank < column.inputs.size(); ++rank) {
    result = combine_integers(dtype, column.scenario.reduction, result, value(rank));
  }
  store_code(out, result, bytes);
}

bool combine_truths(ReduceOp op, bool a, bool b) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bor:
      return a || b;
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::band:
      return a && b;
    case ReduceOp::bxor:
      return a != b;
    default:
      throw std::logic_error("no such reduction of truth values");
  }
}

void reduce_truth(const Column& column, std::byte* out) {
  const auto value = [&](std::size_t rank) { return *column.of(rank) != std::byte{0}; };
  bool result = value(0);
  for (std::size_t rank = 1; rank < column.inputs.size(); ++rank) {
    result = combine_truths(column.scenario.reduction, result, value(rank));
  }
  *out = std::byte{result};
}

void reduce_element(const Column& column, std::byte* out) {
  const DType dtype = column.scenario.dtype;
  if (dtype == DType::boolean) return reduce_truth(column, out);
  if (dtype == DType::complex64) return reduce_complex<float>(column, out);
  if (dtype == DType::complex128) return reduce_complex<double>(column, out);
  const FloatFormat* format = float_format(dtype);
  if (format == nullptr) return reduce_integer(column, out);
  if (format->bits == 64) return reduce_real<double>(column, *format, out);
  return reduce_real<float>(column, *format, out);
}

Bytes reduced_by(const Scenario& scenario, std::span<const Bytes> inputs) {
  Bytes result(inputs[0].size());
  for (std::size_t at = 0; at < result.size(); at += element_bytes(scenario.dtype)) {
    reduce_element(Column{scenario, inputs, at}, result.data() + at);
  }
  return result;
}

/// Converts 8-bit floats to float32, or back.
Bytes converted(std::span<const std::byte> from, DType dtype, bool widen) {
  const FloatFormat& format = *float_format(dtype);
  Bytes to(widen ? from.size() * sizeof(float) : from.size() / sizeof(float));
  for (std::size_t i = 0; i < from.size() / (widen ? 1 : sizeof(float)); ++i) {
    if (widen) {
      const auto value = static_cast<float>(decode(format, load_code(from.data() + i, 1)));
      std::memcpy(to.data() + i * sizeof(float), &value, sizeof value);
    } else {
      float value;
      std::memcpy(&value, from.data() + i * sizeof(float), sizeof value);
      store_code(to.data() + i, encode(format, static_cast<double>(value)), 1);
    }
  }
  return to;
}

Bytes reduced_over_hosts(const Scenario& scenario, std::span<const Bytes> inputs) {
  Scenario on_host = scenario;  // an average is divided there, by the number of all ranks
  std::vector<Bytes> sums;
  std::vector<int> seen;
  for (const int host : scenario.hosts) {
    if (std::find(seen.begin(), seen.end(), host) != seen.end()) continue;
    seen.push_back(host);
    std::vector<Bytes> here;
    on_host.factors.clear();
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      if (scenario.hosts[rank] != host) continue;
      here.push_back(inputs[rank]);
      if (!scenario.factors.empty()) on_host.factors.push_back(scenario.factors[rank]);
    }
    sums.push_back(reduced_by(on_host, here));
  }
  Scenario of_hosts = scenario;
  if (scenario.reduction == ReduceOp::premul_sum || scenario.reduction == ReduceOp::avg)
    of_hosts.reduction = ReduceOp::sum;
  return reduced_by(of_hosts, sums);
}

}  // namespace

Bytes reduced(const Scenario& scenario, std::span<const Bytes> inputs) {
  const std::set<int> hosts(scenario.hosts.begin(), scenario.hosts.end());
  if (hosts.size() < 2) return reduced_by(scenario, inputs);
  const FloatFormat* format = float_format(scenario.dtype);
  if (format == nullptr || format->bits != 8) return reduced_over_hosts(scenario, inputs);
  std::vector<Bytes> wide;
  for (const Bytes& input : inputs) wide.push_back(converted(input, scenario.dtype, true));
  Scenario in_float32 = scenario;
  in_float32.dtype = DType::float32;
  return converted(reduced_over_hosts(in_float32, wide), scenario.dtype, false);
}

}  // namespace conformance
