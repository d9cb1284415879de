// Lossy compression of float32 for messages between hosts (CCL_WIRE_DTYPE):
//
//   std::vector<std::byte> wire(compressed_bytes(WireFormat::int8, count));
//   compress(wire.data(), values, count, WireFormat::int8);
//   decompress(result, wire.data(), count, WireFormat::int8);
//
// bfloat16: rounded to nearest even. Infinities are kept, a NaN becomes the canonical quiet NaN,
// numbers above the largest bfloat16 become infinity. Relative error at most 2^-8 (denormals:
// absolute error at most 2^-134).
//
// int8: blocks of kCompressionBlock elements; the last block may be shorter. A block is a float32
// `scale` followed by one signed byte x / scale per element, rounded to nearest even, from -127 to
// 127.
//   - The scale is max|x| / 127 truncated to 17 significant bits, so byte * scale is exact and
//     never overflows. The error is at most max|x| / 254 of the block, plus less than 2^-16 of
//     that bound.
//   - The smallest scale is 2^-126, the smallest normal number: in a block whose numbers are all
//     below 127 * 2^-126 (1.5e-36) the error is up to 2^-127 (6e-39). If all elements would round
//     to zero, the scale is 0. Negative zero becomes zero.
//   - If a block contains a NaN or an infinity, its scale is NaN, so the whole block decompresses
//     to NaN: a non-finite input never yields a finite result.
//
// decompress() then compress() gives the same bytes, in all formats. All variants of the kernels
// give the same bytes. Numbers are in the machine's byte order.
// Thread safety: functions without shared state.
#pragma once

#include <cstddef>

#include "kernels/compress_kernels.h"
#include "tccl/types.h"

namespace tccl::kernels {

/// Compressed data can be split at multiples of kCompressionBlock: element i * kCompressionBlock
/// starts at byte compressed_bytes(format, i * kCompressionBlock), and the rest can be decompressed
/// from there on its own.
std::size_t compressed_bytes(WireFormat format, std::size_t count);

/// Addresses need no alignment. The ranges must not overlap.
void compress(void* to, const float* from, std::size_t count, WireFormat format);
void decompress(float* to, const void* from, std::size_t count, WireFormat format);

}  // namespace tccl::kernels
