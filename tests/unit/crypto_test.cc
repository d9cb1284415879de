// HMAC-SHA256 against the test vectors of RFC 4231; comparison of hashes.
#include "base/crypto.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tccl {
namespace {

struct Vector {
  std::string key;
  std::string message;
  std::string digest;
};

std::string counted_bytes(char first, char last) {
  std::string bytes;
  for (char byte = first; byte <= last; ++byte) bytes += byte;
  return bytes;
}

/// Cases 1 to 7 without 5, which is about truncated output. Keys are shorter and longer than the
/// 32 bytes of a hash and the 64 bytes of a block of SHA-256.
const std::vector<Vector> kVectors = {
    {std::string(20, '\x0b'), "Hi There",
     "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
    {"Jefe", "what do ya want for nothing?",
     "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
    {std::string(20, '\xaa'), std::string(50, '\xdd'),
     "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
    {counted_bytes(1, 25), std::string(50, '\xcd'),
     "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
    {std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First",
     "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
    {std::string(131, '\xaa'),
     "This is a test using a larger than block-size key and a larger than block-size data. The key "
     "needs to be hashed before being used by the HMAC algorithm.",
     "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
    // Not in the RFC.
    {"", "", "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad"},
};

TEST(Crypto, HmacSha256) {
  for (const Vector& vector : kVectors)
    EXPECT_EQ(to_hex(hmac_sha256(vector.key, vector.message)), vector.digest)
        << "key of " << vector.key.size() << " bytes";
}

TEST(Crypto, SameBytesLooksAtEveryByte) {
  const Bytes32 bytes = random_bytes32();
  EXPECT_TRUE(same_bytes(bytes, Bytes32(bytes)));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    Bytes32 other = bytes;
    other[i] ^= 1;
    EXPECT_FALSE(same_bytes(bytes, other)) << "byte " << i;
  }
}

TEST(Crypto, RandomBytesDiffer) { EXPECT_NE(random_bytes32(), random_bytes32()); }

}  // namespace
}  // namespace tccl
