#include "algorithms/float32_accumulation.h"

#include <vector>

#include "kernels/widen.h"

namespace tccl {

void accumulate_in_float32(const CollectiveTask& task, bool has_output,
                           FunctionRef<void(const CollectiveTask&)> run) {
  const Operation& narrow = task.operation();
  if (!kernels::is_float8(narrow.dtype)) return run(task);
  std::vector<float> values(narrow.count);
  kernels::widen(values.data(), narrow.in, narrow.count, narrow.dtype);
  Operation wide = narrow;
  wide.dtype = DType::float32;
  wide.in = values.data();
  wide.out = values.data();
  run(CollectiveTask(wide, task.workers()));
  if (has_output) kernels::narrow(narrow.out, values.data(), narrow.count, narrow.dtype);
}

void accumulate_blocks_in_float32(const CollectiveTask& task, int rank, int ranks,
                                  FunctionRef<void(const CollectiveTask&)> run) {
  const Operation& narrow = task.operation();
  if (!kernels::is_float8(narrow.dtype)) return run(task);
  std::vector<std::vector<float>> values;
  std::vector<ConstBlock> blocks;
  for (int to = 0; to < ranks; ++to) {
    const std::span<const std::byte> input = task.input_for(to);  // one byte per element
    values.emplace_back(input.size());
    kernels::widen(values.back().data(), input.data(), input.size(), narrow.dtype);
    blocks.push_back({values.back().data(), input.size()});
  }
  std::vector<float> sum(blocks[static_cast<std::size_t>(rank)].count);
  Operation wide = narrow;
  wide.dtype = DType::float32;
  wide.in_blocks = blocks;
  wide.out = sum.data();
  run(CollectiveTask(wide, task.workers()));
  kernels::narrow(narrow.out, sum.data(), sum.size(), narrow.dtype);
}

}  // namespace tccl
