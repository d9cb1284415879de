#include "base/crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include "base/system_error.h"
#include "tccl/error.h"

namespace tccl {

Bytes32 random_bytes32() {
  Bytes32 bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw_system_error("getrandom");
  return bytes;
}

Bytes32 hmac_sha256(std::string_view key, std::string_view message) {
  Bytes32 digest;
  unsigned length = 0;
  const auto* text = reinterpret_cast<const unsigned char*>(message.data());
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), text, message.size(),
           digest.data(), &length) == nullptr ||
      length != digest.size())
    throw Error(Errc::system, "libcrypto failed to compute HMAC-SHA256");
  return digest;
}

bool same_bytes(const Bytes32& a, const Bytes32& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string to_hex(std::span<const unsigned char> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace tccl
