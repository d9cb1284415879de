// Random bytes, HMAC-SHA256 and hexadecimal text.
// Thread safety: functions without shared state.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tccl {

/// An id, a token, a nonce, a key or a hash.
using Bytes32 = std::array<unsigned char, 32>;

/// From getrandom(); throws Error{system} if the kernel has none.
Bytes32 random_bytes32();
Bytes32 hmac_sha256(std::string_view key, std::string_view message);
/// Compares in constant time: how many bytes match cannot be measured.
bool same_bytes(const Bytes32& a, const Bytes32& b);

std::string to_hex(std::span<const unsigned char> bytes);
inline std::string_view as_text(const Bytes32& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace tccl
