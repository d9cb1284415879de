// Which variant is used, and that all variants of this CPU compute the bits of the baseline, for
// every code of the 16- and 8-bit floats.
#include "kernels/variants.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "unit/reduce_reference.h"

namespace tccl {
namespace {

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

class NarrowFloatVariants : public testing::TestWithParam<Case> {
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

TEST_P(NarrowFloatVariants, ComputeTheBaselinesBitsForEveryCode) {
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

INSTANTIATE_TEST_SUITE_P(All, NarrowFloatVariants, testing::ValuesIn(narrow_cases()), case_name);

TEST(KernelVariants, TheLastUsableIsUsed) {
  const kernels::Variant* last = nullptr;
  for (const kernels::Variant& variant : kernels::variants()) {
    std::printf("%s: %s\n", variant.name,
                variant.usable() ? "tested" : "not supported by this CPU");
    if (variant.usable()) last = &variant;
  }
  EXPECT_TRUE(kernels::variants().front().usable());
  EXPECT_EQ(&kernels::best_variant(), last);
}

}  // namespace
}  // namespace tccl
