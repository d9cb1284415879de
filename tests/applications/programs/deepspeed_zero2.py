"""A training with DeepSpeed ZeRO-2 on its CPU accelerator; start it with torchrun.

DIST_BACKEND names the backend; without it DeepSpeed chooses.
"""

import os

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from training_report import Steps, show

STEPS = 20
BATCH_SIZE = 16
FEATURES = 64

CONFIG = {
    "train_micro_batch_size_per_gpu": BATCH_SIZE,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
}


def make_batches(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1 + rank)
    return list(torch.randn(STEPS, BATCH_SIZE, FEATURES, generator=generator))


def main() -> None:
    deepspeed.init_distributed(dist_backend=os.environ.get("DIST_BACKEND"))
    assert dist.get_world_size() == 2
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 256), nn.GELU(), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    assert engine.zero_optimization_stage() == 2

    steps = Steps()
    for inputs in make_batches(dist.get_rank()):
        loss = nn.functional.mse_loss(engine(inputs), inputs.norm(dim=1, keepdim=True))
        engine.backward(loss)
        engine.step()
        steps.done()

    mean = loss.detach().clone()
    dist.all_reduce(mean)
    show("deepspeed ZeRO-2", steps, mean / dist.get_world_size())
    engine.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
