"""Rank 1 is killed while the others wait for it in an all_reduce: what they report, and how soon.

torch-ccl run -n 3 examples/dead_rank.py          # ends with exit code 137: rank 1's SIGKILL
torch-ccl run -n 3 examples/dead_rank.py gloo     # the same over Gloo
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "ccl")
rank = dist.get_rank()
kill_time = torch.tensor([time.monotonic() + 0.5], dtype=torch.float64)
dist.broadcast(kill_time, src=0)
if rank == 1:
    time.sleep(max(0.0, kill_time.item() - time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(torch.ones(1))
except RuntimeError as error:
    elapsed_ms = 1000 * (time.monotonic() - kill_time.item())
    print(f"rank {rank}, {elapsed_ms:.1f} ms after the kill: {error}", flush=True)
