// The one copying loop, compiled once per instruction set.
#pragma once

#include "kernels/vectors.h"

namespace tccl::kernels {
namespace {  // NOLINT(google-build-namespaces): see vectors.h

inline void copy_vectors(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  constexpr std::size_t kTurn = 4 * kVectorBytes;
  for (; bytes >= kTurn; to += kTurn, from += kTurn, bytes -= kTurn) {
    Vector<unsigned char> part[4];
    for (std::size_t i = 0; i < 4; ++i)
      part[i] = load_vector<unsigned char>(from + i * kVectorBytes);
    for (std::size_t i = 0; i < 4; ++i) store_vector(to + i * kVectorBytes, part[i]);
  }
  for (; bytes >= kVectorBytes; to += kVectorBytes, from += kVectorBytes, bytes -= kVectorBytes)
    store_vector(to, load_vector<unsigned char>(from));
  copy_few(to, from, bytes);
}

}  // namespace
}  // namespace tccl::kernels
