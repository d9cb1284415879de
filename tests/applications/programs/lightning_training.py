"""A training with lightning, which starts its second process itself.

PROCESS_GROUP_BACKEND names the backend.
"""

import os

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training_report import Steps, show

STEPS = 20
BATCH_SIZE = 16
FEATURES = 64


def make_dataset(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, FEATURES, generator=generator)
    return TensorDataset(inputs, inputs.square().sum(dim=1, keepdim=True).sqrt())


class Regression(lightning.LightningModule):
    def __init__(self, steps: Steps):
        super().__init__()
        self._steps = steps
        self.layers = nn.Sequential(nn.Linear(FEATURES, 256), nn.GELU(), nn.Linear(256, 1))

    def training_step(self, batch, batch_index):
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.layers(inputs), targets)
        self.log("loss", loss, sync_dist=True)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_index):
        self._steps.done()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    lightning.seed_everything(0)
    steps = Steps()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=os.environ["PROCESS_GROUP_BACKEND"]),
        max_steps=STEPS,
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    dataset = make_dataset(2 * BATCH_SIZE * STEPS)
    trainer.fit(Regression(steps), DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True))
    assert trainer.world_size == 2 and steps.count == STEPS
    show("lightning", steps, trainer.callback_metrics["loss"])


if __name__ == "__main__":
    main()
