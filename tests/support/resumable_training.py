"""A training whose steps have the same result whatever the number of ranks is.

Every rank computes the gradient of its part of a step's batch; the mean over the ranks is that of
the whole batch. So a run whose ranks are killed, leave and join must end with the weights of
trained_alone().
"""

import io
from pathlib import Path

import torch

BATCH = 12  # divisible by 1 to 4 ranks
RATE, MOMENTUM = 0.02, 0.9


def batch_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, 6, generator=generator, dtype=torch.float64)
    return inputs, inputs.sin().sum(1, keepdim=True)


class Training:
    def __init__(self):
        generator = torch.Generator().manual_seed(42)
        shapes = ((6, 8), (8, 1))
        self.step, self.loss = 0, float("nan")
        self.weights = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
        self.momenta = [torch.zeros_like(weight) for weight in self.weights]

    def gradients(self, rank: int, size: int) -> list[torch.Tensor]:
        """Of the mean loss of this rank's part of the batch; the loss comes last."""
        inputs, targets = (each.chunk(size)[rank] for each in batch_of(self.step))
        weights = [weight.clone().requires_grad_() for weight in self.weights]
        loss = ((inputs @ weights[0]).tanh() @ weights[1] - targets).square().mean()
        return [*torch.autograd.grad(loss, weights), loss.detach()]

    def apply(self, gradients: list[torch.Tensor]) -> None:
        """A step with the means over the ranks."""
        *of_weights, loss = gradients
        for weight, momentum, gradient in zip(self.weights, self.momenta, of_weights, strict=True):
            weight -= RATE * momentum.mul_(MOMENTUM).add_(gradient)
        self.step, self.loss = self.step + 1, loss.item()

    def state_dict(self) -> dict:
        return dict(vars(self))

    def load_state_dict(self, state: dict) -> None:
        vars(self).update(state)

    def save(self, path: Path) -> None:
        """A reader sees the old file or the new one."""
        new = path.with_suffix(".new")
        new.write_bytes(self.to_bytes())
        new.replace(path)

    def to_bytes(self) -> bytes:
        file = io.BytesIO()
        torch.save(self.state_dict(), file)
        return file.getvalue()

    def load(self, file: Path | io.BytesIO) -> None:
        self.load_state_dict(torch.load(file))


def trained_alone(steps: int) -> Training:
    """The result without a group."""
    training = Training()
    while training.step < steps:
        training.apply(training.gradients(0, 1))
    return training


def check_trained(training: Training, steps: int) -> None:
    expected = trained_alone(steps)
    assert training.step == steps
    for name in ("loss", "weights", "momenta"):
        found, wanted = getattr(training, name), getattr(expected, name)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
