#include "algorithms/float32_accumulation.h"

#include <vector>

#include "kernels/float8.h"

namespace tccl {

void accumulate_in_float32(const CollectiveTask& task, bool has_output,
                           FunctionRef<void(const CollectiveTask&)> run) {
  const Operation& float8 = task.operation();
  if (!kernels::is_float8(float8.dtype)) return run(task);
  std::vector<float> values(float8.count);
  kernels::float8_to_float32(values.data(), float8.in, float8.count, float8.dtype);
  Operation float32 = float8;
  float32.dtype = DType::float32;
  float32.in = values.data();
  float32.out = values.data();
  run(CollectiveTask(float32, task.workers()));
  if (has_output) kernels::float32_to_float8(float8.out, values.data(), float8.count, float8.dtype);
}

void accumulate_blocks_in_float32(const CollectiveTask& task, int rank, int ranks,
                                  FunctionRef<void(const CollectiveTask&)> run) {
  const Operation& float8 = task.operation();
  if (!kernels::is_float8(float8.dtype)) return run(task);
  std::vector<std::vector<float>> values;
  std::vector<ConstBlock> blocks;
  for (int to = 0; to < ranks; ++to) {
    const std::span<const std::byte> input = task.input_for(to);  // one byte per element
    values.emplace_back(input.size());
    kernels::float8_to_float32(values.back().data(), input.data(), input.size(), float8.dtype);
    blocks.push_back({values.back().data(), input.size()});
  }
  std::vector<float> sum(blocks[static_cast<std::size_t>(rank)].count);
  Operation float32 = float8;
  float32.dtype = DType::float32;
  float32.in_blocks = blocks;
  float32.out = sum.data();
  run(CollectiveTask(float32, task.workers()));
  kernels::float32_to_float8(float8.out, sum.data(), sum.size(), float8.dtype);
}

}  // namespace tccl
