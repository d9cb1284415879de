// Randomness and message authentication for the meeting of processes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tccl {

using Digest = std::array<unsigned char, 32>;

Digest random_digest();
Digest hmac_sha256(std::string_view key, std::string_view message);
/// Takes the same time whatever the contents.
bool same_digest(const Digest& a, const Digest& b);

std::string to_hex(std::span<const unsigned char> bytes);
inline std::string_view as_text(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace tccl
