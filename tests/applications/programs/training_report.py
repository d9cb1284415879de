"""The report of a training: rank 0 prints it as one line of JSON.

    steps = Steps()
    for batch in batches:
        train_on(batch)
        steps.done()
    show("name", steps, final_loss)

With APPLICATION_EXPECTS=ccl in the environment every rank asserts that ccl ran the operations of
its training. Without it torch_ccl is not imported before the training is over.
"""

import json
import os
import time

import torch
import torch.distributed as dist

WARM_UP_STEPS = 5


class Steps:
    """Counts the steps of a training and measures all but the first few."""

    def __init__(self):
        self._ends_s = []

    def done(self) -> None:
        self._ends_s.append(time.perf_counter())

    @property
    def count(self) -> int:
        return len(self._ends_s)

    @property
    def per_second(self) -> float:
        measured = self._ends_s[WARM_UP_STEPS - 1 :]
        return (len(measured) - 1) / (measured[-1] - measured[0])


def assert_ours(backend, operations: int, steps: int) -> None:
    """The default group's CPU backend is ours, and it ran operations in every step."""
    import torch_ccl

    assert isinstance(backend, torch_ccl.ProcessGroupCCL), (
        f"the default group's CPU backend is {type(backend).__name__}, not ProcessGroupCCL"
    )
    assert operations >= steps, f"ccl started {operations} operations in {steps} steps"


def show(program: str, steps: Steps, loss: float) -> None:
    """Call it on every rank while the default group exists."""
    from torch_ccl import operation_count

    operations = operation_count()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    if os.environ.get("APPLICATION_EXPECTS") == "ccl":
        assert_ours(backend, operations, steps.count)
    if dist.get_rank() == 0:
        report = {
            "program": program,
            "backend": type(backend).__name__,
            "operations": operations,
            "steps": steps.count,
            "steps_per_s": steps.per_second,
            "loss": float(loss),
        }
        print(json.dumps(report), flush=True)
