#include "data.h"

#include <array>

#include "formats.h"
#include "random.h"

namespace conformance {

using tccl::DType;

namespace {

constexpr std::uint64_t kBlockStream = 3;
constexpr std::uint64_t kMessageStream = 4;
constexpr std::uint64_t kFactorStream = 5;

std::uint64_t key(int number) { return static_cast<std::uint64_t>(number); }

bool draws_special(Random& random, Flavour flavour) {
  return random.below(32) < (flavour == Flavour::special ? 24U : 1U);
}

std::uint64_t special_code(const FloatFormat& format, Random& random) {
  const std::uint64_t noise = random.next();
  const std::uint64_t sign = (noise >> 63) != 0 ? format.sign_bit() : 0;
  switch (random.below(8)) {
    case 0:
      return sign;  // zero; for fnuz the negative one is NaN
    case 1:
      return format.nan_code();
    case 2:
      return sign | format.overflow_code();
    case 3:
      return sign | format.largest_finite();
    case 4:
      return sign | format.one_mantissa();  // smallest normal number
    case 5:
      return sign | 1;  // smallest denormal
    case 6:
      return sign | (noise & (format.one_mantissa() - 1));  // some denormal
    default:
      return noise & (format.sign_bit() | format.magnitude_mask());
  }
}

std::uint64_t tie_code(const FloatFormat& format, Random& random) {
  const std::uint64_t one = static_cast<std::uint64_t>(format.bias) << format.mantissa_bits;
  const std::uint64_t negative_zero = format.specials == Specials::fnuz ? 0 : format.sign_bit();
  const std::array codes = {std::uint64_t{0}, negative_zero, one, one | format.sign_bit()};
  return codes.at(random.below(codes.size()));
}

/// Magnitudes between 1/8 and 16: sums in another order round to other bits.
std::uint64_t ordinary_code(const FloatFormat& format, Random& random) {
  const std::uint64_t noise = random.next();
  const std::uint64_t exponent = static_cast<std::uint64_t>(format.bias) - 3 + (noise >> 56) % 7;
  const std::uint64_t sign = (noise & 1) != 0 ? format.sign_bit() : 0;
  return sign | exponent << format.mantissa_bits | ((noise >> 1) & (format.one_mantissa() - 1));
}

std::uint64_t float_code(const FloatFormat& format, Random& random, Flavour flavour) {
  if (flavour == Flavour::ties) return tie_code(format, random);
  if (draws_special(random, flavour)) return special_code(format, random);
  return ordinary_code(format, random);
}

/// store_code() cuts to the width, so the largest values of each are made from shifted masks.
std::uint64_t integer_code(std::size_t bytes, Random& random, Flavour flavour) {
  if (flavour == Flavour::ties) return random.below(2);
  if (!draws_special(random, flavour)) return random.next();
  const std::uint64_t sign = std::uint64_t{1} << (8 * bytes - 1);
  const std::array codes = {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}, sign, sign - 1};
  return codes.at(random.below(codes.size()));
}

/// Any nonzero byte is true. How many are true decides whether AND and OR show anything.
std::uint64_t truth_code(Random& random, Flavour flavour) {
  const std::uint64_t falses_in_16 = flavour == Flavour::ties      ? 1U
                                     : flavour == Flavour::special ? 14U
                                                                   : 8U;
  if (random.below(16) < falses_in_16) return 0;
  return random.one_in(2) ? 1 : 1 + random.below(255);
}

void fill(Bytes& bytes, DType dtype, Random& random, Flavour flavour) {
  const FloatFormat* format = float_format(dtype);
  const std::size_t width =
      format != nullptr ? static_cast<std::size_t>(format->bits) / 8 : element_bytes(dtype);
  for (std::size_t at = 0; at < bytes.size(); at += width) {
    const std::uint64_t code = format != nullptr         ? float_code(*format, random, flavour)
                               : dtype == DType::boolean ? truth_code(random, flavour)
                                                         : integer_code(width, random, flavour);
    store_code(bytes.data() + at, code, width);
  }
}

}  // namespace

Bytes make_block(std::uint64_t seed, const Case& one, int world_rank, int block,
                 std::size_t count) {
  Random random({seed, kBlockStream, one.index, key(world_rank), key(block)});
  Bytes bytes(count * element_bytes(one.dtype));
  fill(bytes, one.dtype, random, one.flavour);
  return bytes;
}

Bytes make_message(std::uint64_t seed, const Case& one, int sender, int receiver, int number,
                   std::size_t bytes) {
  Random random({seed, kMessageStream, one.index, key(sender), key(receiver), key(number)});
  Bytes message(bytes);
  fill(message, DType::uint8, random, Flavour::ordinary);
  return message;
}

double make_factor(std::uint64_t seed, const Case& one, int world_rank) {
  Random random({seed, kFactorStream, one.index, key(world_rank)});
  const std::array factors = {1.0, 0.0, 2.0, 0.5, 3.0, 1.0 / 3.0, 100.0, -1.0, -2.75};
  const std::size_t negatives = 2;  // out of range of unsigned integers, hence undefined there
  const bool has_sign = float_format(one.dtype) != nullptr || is_signed_integer(one.dtype);
  return factors.at(random.below(has_sign ? factors.size() : factors.size() - negatives));
}

}  // namespace conformance
