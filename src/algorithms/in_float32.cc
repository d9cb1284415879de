#include "algorithms/in_float32.h"

#include <vector>

#include "kernels/widen.h"

namespace tccl {

void in_float32(const Call& call, bool has_output, FunctionRef<void(const Call&)> run) {
  const Operation& narrow = call.operation();
  if (!kernels::is_float8(narrow.dtype)) return run(call);
  std::vector<float> values(narrow.count);
  kernels::widen(values.data(), narrow.in, narrow.count, narrow.dtype);
  Operation wide = narrow;
  wide.dtype = DType::float32;
  wide.in = values.data();
  wide.out = values.data();
  run(Call(wide, call.workers()));
  if (has_output) kernels::narrow(narrow.out, values.data(), narrow.count, narrow.dtype);
}

void blocks_in_float32(const Call& call, int rank, int ranks, FunctionRef<void(const Call&)> run) {
  const Operation& narrow = call.operation();
  if (!kernels::is_float8(narrow.dtype)) return run(call);
  std::vector<std::vector<float>> values;
  std::vector<ConstBlock> blocks;
  for (int to = 0; to < ranks; ++to) {
    const std::span<const std::byte> input = call.input_for(to);  // one byte per element
    values.emplace_back(input.size());
    kernels::widen(values.back().data(), input.data(), input.size(), narrow.dtype);
    blocks.push_back({values.back().data(), input.size()});
  }
  std::vector<float> sum(blocks[static_cast<std::size_t>(rank)].count);
  Operation wide = narrow;
  wide.dtype = DType::float32;
  wide.in_blocks = blocks;
  wide.out = sum.data();
  run(Call(wide, call.workers()));
  kernels::narrow(narrow.out, sum.data(), sum.size(), narrow.dtype);
}

}  // namespace tccl
