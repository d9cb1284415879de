"""Prints the profiler's table of seven sums of one shape and three of another."""

import torch
import torch.distributed as dist
import torch_ccl  # noqa: F401

dist.init_process_group("ccl")
wide, small = torch.ones(3, 5), torch.ones(2)
with torch.autograd.profiler.profile(record_shapes=True) as profile:
    for step in range(7):
        dist.all_reduce(wide)
        if step < 3:
            dist.all_reduce(small)
dist.barrier()
averages = profile.key_averages(group_by_input_shape=True)
print(averages.table(sort_by="self_cpu_time_total"))
