"""A trial: which fault happens to which rank, at step k of call n.

A seed and a number determine it.
"""

import math
import random
from dataclasses import dataclass
from datetime import timedelta

from fault_harness.calls import CALLS, INIT, Call, Job
from fault_harness.table import FAULTS, SHORT_TIMEOUT_S, TIMEOUT_S, Effect, Fault

MAX_STEP = 3000
LAYOUTS = [[2, 2], [2, 2], [1, 2], [1, 1]]
STORES = ["file", "rank 0", "server"]
#: After the fault's call: in these, calls without a fault, and those that notice it late.
MORE_CALLS, MAX_CALLS = 10, 200
#: The fault happens between calls if these calls had fewer steps than drawn.
CALLS_WITH_STEPS = 3


@dataclass(frozen=True)
class Trial:
    name: str  # "seed/number"
    layout: tuple[int, ...]  # ranks of each host
    victim: int
    fault_name: str
    call: int  # the fault's; 0 makes the group of all ranks
    step: int
    headers_only: bool
    ends: bool  # the fault's call is destroy_process_group()
    store: str

    @property
    def size(self) -> int:
        return sum(self.layout)

    @property
    def fault(self) -> Fault:
        return FAULTS[self.fault_name]

    @property
    def phase(self) -> str:
        if self.ends:
            return "ending"
        making = self.call == 0 or self.call_name(self.call) in ("new_group", "split_group")
        return "group making" if making else "calls"

    @property
    def timeout(self) -> timedelta:
        short = self.fault.effect is Effect.STALLED
        return timedelta(seconds=SHORT_TIMEOUT_S if short else TIMEOUT_S)

    def call_name(self, call: int) -> str:
        return random.Random(f"{self.name}/{call}").choice(list(CALLS))

    def call_at(self, call: int) -> Call:
        return CALLS[self.call_name(call)] if call else INIT

    def job(self, call: int, rank: int) -> Job:
        return Job(rank, self.size, f"{self.name}/{call}", self.timeout, len(self.layout) > 1)

    def names_near(self, call: int) -> set[str]:
        """Of the calls in which ranks can be while one of them is in `call`."""
        near = range(min(self.call, call - 2), call + 3)
        return {name for c in near if c >= 0 for name in self.call_at(c).names}

    def host_of(self, rank: int) -> int:
        return next(h for h in range(len(self.layout)) if rank < sum(self.layout[: h + 1]))

    def __str__(self) -> str:
        where = "destroy_process_group" if self.ends else "init_process_group"
        if self.call and not self.ends:
            where = self.call_name(self.call)
        return (
            f"trial {self.name}: {self.fault_name} of rank {self.victim} of {list(self.layout)} at "
            f"step {self.step} of call {self.call} ({where}), store: {self.store}"
        )


def draw(seed: int, number: int, *, over_hosts: bool, only: str | None) -> Trial:
    name = f"{seed}/{number}"
    rng = random.Random(f"{name}/trial")
    layout = rng.choice(LAYOUTS) if over_hosts else [rng.randint(2, 5)]
    possible = [each for each, row in FAULTS.items() if over_hosts or not row.over_hosts]
    fault_name = rng.choice(possible)
    fault_name = only or fault_name
    fault = FAULTS[fault_name]
    phase = rng.choices(["init", "calls", "end"], [2, 7, 1])[0]
    if fault.needs_group and phase == "init":
        phase = "calls"
    if fault.effect is not Effect.LOST and phase == "end":
        phase = "calls"
    return Trial(
        name=name,
        layout=tuple(layout),
        victim=rng.randrange(sum(layout)),
        fault_name=fault_name,
        call=0 if phase == "init" else rng.randint(1, 8),
        step=round(math.exp(rng.uniform(0, math.log(MAX_STEP)))),
        # Over hosts the kernel, too, writes messages to this memory, which must not be protected.
        headers_only=over_hosts or rng.random() < 0.6,
        ends=phase == "end",
        store="server" if fault.effect is Effect.NO_STORE else rng.choice(STORES),
    )
