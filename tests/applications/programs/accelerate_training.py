"""A training with accelerate; start it with `accelerate launch --cpu`."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training_report import Steps, show

STEPS = 20
BATCH_SIZE = 16
FEATURES = 64


def make_dataset(samples: int) -> TensorDataset:
    inputs = torch.randn(samples, FEATURES)
    return TensorDataset(inputs, inputs.square().sum(dim=1, keepdim=True).sqrt())


def main() -> None:
    accelerator = Accelerator()
    assert accelerator.num_processes == 2
    set_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 256), nn.GELU(), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=2 * STEPS)
    dataset = make_dataset(2 * BATCH_SIZE * STEPS)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)

    steps = Steps()
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        steps.done()

    assert steps.count == STEPS
    losses = accelerator.gather(loss.detach())
    accelerator.wait_for_everyone()
    show("accelerate", steps, losses.mean())
    accelerator.end_training()


if __name__ == "__main__":
    main()
