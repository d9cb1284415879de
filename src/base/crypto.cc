#include "base/crypto.h"

#include <sodium/crypto_auth_hmacsha256.h>
#include <sodium/crypto_verify_32.h>
#include <sys/random.h>

#include "base/system_error.h"

namespace tccl {
namespace {

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

Bytes32 random_bytes32() {
  Bytes32 bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw_system_error("getrandom");
  return bytes;
}

Bytes32 hmac_sha256(std::string_view key, std::string_view message) {
  // Not crypto_auth_hmacsha256(), which takes keys of 32 bytes only. None of these can fail.
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, bytes_of(key), key.size());
  crypto_auth_hmacsha256_update(&state, bytes_of(message), message.size());
  Bytes32 digest;
  crypto_auth_hmacsha256_final(&state, digest.data());
  return digest;
}

bool same_bytes(const Bytes32& a, const Bytes32& b) {
  return crypto_verify_32(a.data(), b.data()) == 0;
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
