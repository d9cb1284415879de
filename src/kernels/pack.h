// float32 in fewer bytes for the way between hosts:
//
//   std::vector<std::byte> wire(packed_bytes(WireFormat::int8, count));
//   pack(wire.data(), values, count, WireFormat::int8);
//   unpack(result, wire.data(), count, WireFormat::int8);
//
// bfloat16: to nearest even. Infinities stay, a NaN becomes the one quiet NaN, numbers above the
// largest bfloat16 become infinity. The error is at most 2^-8 of a number (of denormals: 2^-134).
//
// int8: blocks of kPackBlock elements, the last one may be shorter. A block is a float32 `scale`,
// then for every element x one signed byte x / scale, to nearest even, from -127 to 127.
//   - The scale is max|x| / 127, cut to 17 significant bits: so byte * scale is exact, and never
//     overflows. The error is at most max|x| / 254 in the block, exceeded by less than 2^-16 of it.
//   - No scale is below 2^-126, the smallest normal number: next to nothing but numbers below
//     127 * 2^-126 (1.5e-36) the error is up to 2^-127 (6e-39) instead. Where all would round to
//     zero, as zeros do, the scale is 0. Negative zero becomes zero.
//   - A NaN or an infinity makes the scale NaN, and with it the whole block: a number that is no
//     number cannot be told from its neighbours any more, and must not pass for a finite one.
//
// Packing again what was unpacked gives the same bytes, in all formats. All variants of the kernels
// give the same bytes. Numbers are in the byte order of the machine. Safe from any thread.
#pragma once

#include <cstddef>

#include "kernels/packing.h"
#include "tccl/types.h"

namespace tccl::kernels {

/// Packed elements can be cut at multiples of kPackBlock: what begins at element i * kPackBlock
/// begins at byte packed_bytes(format, i * kPackBlock), and can be unpacked by itself.
std::size_t packed_bytes(WireFormat format, std::size_t count);

/// Neither address needs alignment. They may not overlap.
void pack(void* to, const float* from, std::size_t count, WireFormat format);
void unpack(float* to, const void* from, std::size_t count, WireFormat format);

}  // namespace tccl::kernels
