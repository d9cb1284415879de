// The copy kernels of every variant of this CPU.
#include "kernels/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/variants.h"

namespace tccl {
namespace {

TEST(Copy, CopiesExactlyTheGivenBytesAtAnyAddress) {
  constexpr std::size_t kMost = 5000;
  std::vector<unsigned char> from(kMost + 64);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 7 + 1);
  for (const kernels::Variant& variant : kernels::variants()) {
    if (!variant.usable()) continue;
    for (const std::size_t bytes : {0, 1, 15, 63, 64, 65, 255, 256, 257, 1023, 2049, 4096, 5000})
      for (const std::size_t offset : {0, 1, 8, 16, 63}) {
        std::vector<unsigned char> expected(kMost + 128, 0xee);
        std::copy_n(from.begin() + static_cast<long>(offset / 2), bytes,
                    expected.begin() + static_cast<long>(offset));
        for (const auto copy : {variant.copy, variant.copy_nontemporal}) {
          std::vector<unsigned char> to(expected.size(), 0xee);
          copy(to.data() + offset, from.data() + offset / 2, bytes);
          EXPECT_EQ(to, expected) << variant.name << ", " << bytes << " bytes at " << offset;
        }
      }
  }
}

}  // namespace
}  // namespace tccl
