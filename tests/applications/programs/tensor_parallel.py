"""A small Llama cut over the ranks by transformers' tensor parallelism; start it with torchrun.

Every rank also trains the whole model by itself, and the losses must be those of the cut one.
"""

import tempfile

import torch
import torch.distributed as dist
from training_report import Steps, show
from transformers import LlamaConfig, LlamaForCausalLM, set_seed
from transformers.distributed import DistributedConfig

STEPS = 20
VOCABULARY = 128
TOLERANCE = 1e-4  # the sums of a cut layer are rounded elsewhere


def save_model(folder: str) -> None:
    set_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def make_batches() -> list[torch.Tensor]:
    """Sequences that count upwards from a random token."""
    generator = torch.Generator().manual_seed(1)
    first = torch.randint(VOCABULARY, (STEPS, 8, 1), generator=generator)
    return list((first + torch.arange(32)) % VOCABULARY)


def train(model: torch.nn.Module, steps: Steps) -> list[float]:
    """The loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for tokens in make_batches():
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        steps.done()
    return losses


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder)
        alone = train(LlamaForCausalLM.from_pretrained(folder), Steps())
        cut = LlamaForCausalLM.from_pretrained(
            folder, distributed_config=DistributedConfig(tp_plan="auto")
        )
    assert dist.get_world_size() == 2
    steps = Steps()
    losses = train(cut, steps)
    torch.testing.assert_close(losses, alone, rtol=TOLERANCE, atol=0)
    show("tensor parallel", steps, losses[-1])


if __name__ == "__main__":
    main()
