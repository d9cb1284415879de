"""A small GPT-2 trained by transformers' Trainer; start it with torchrun."""

import tempfile

import torch
from training_report import Steps, show
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

STEPS = 20
VOCABULARY = 128
TOKENS = 32


def make_dataset(samples: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Sequences that count upwards from a random token."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(VOCABULARY, (samples, 1), generator=generator)
    tokens = (first + torch.arange(TOKENS)) % VOCABULARY
    return [{"input_ids": row, "labels": row} for row in tokens]


class CountSteps(TrainerCallback):
    def __init__(self, steps: Steps):
        self._steps = steps

    def on_step_end(self, args, state, control, **kwargs):
        self._steps.done()


def main() -> None:
    set_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=TOKENS,
        n_embd=64,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    steps = Steps()
    with tempfile.TemporaryDirectory() as output:
        arguments = TrainingArguments(
            output_dir=output,
            use_cpu=True,
            ddp_backend="gloo",
            max_steps=STEPS,
            per_device_train_batch_size=8,
            learning_rate=1e-3,
            logging_steps=5,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=0,
        )
        trainer = Trainer(
            model=GPT2LMHeadModel(config),
            args=arguments,
            train_dataset=make_dataset(samples=512, seed=1),
            eval_dataset=make_dataset(samples=64, seed=2),
            callbacks=[CountSteps(steps)],
        )
        trainer.train()
        loss = trainer.evaluate()["eval_loss"]
    assert arguments.world_size == 2 and steps.count == STEPS
    show("transformers Trainer", steps, loss)


if __name__ == "__main__":
    main()
