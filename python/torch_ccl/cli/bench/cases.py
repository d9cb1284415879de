"""What `torch-ccl bench` measures: one case is an operation with its size, dtype and ranks."""

from dataclasses import dataclass

from torch_ccl.cli.bench.goals import GOALS, SIZES
from torch_ccl.cli.bench.summary import size_text

#: operations.py has one function for each.
OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
    "ping_pong",
    "barrier",
)


@dataclass(frozen=True)
class Case:
    op: str
    bytes: int
    dtype: str
    ranks: int

    @property
    def iterations(self) -> int:
        if self.bytes <= 64 << 10:
            return 200
        return 50 if self.bytes <= 1 << 20 else 6

    @property
    def title(self) -> str:
        """The case without its size."""
        dtype = "" if self.op == "barrier" else f", {self.dtype}"
        return f"{self.op}{dtype}, {self.ranks} ranks"

    def __str__(self) -> str:
        return self.title if self.op == "barrier" else f"{self.title}, {size_text(self.bytes)}"


def make_cases(ops: list[str], sizes: list[int], dtypes: list[str], ranks: int) -> list[Case]:
    """A barrier has neither size nor dtype: one case."""
    cases = [
        Case(op, 0, dtypes[0], ranks) if op == "barrier" else Case(op, size, dtype, ranks)
        for op in ops
        for dtype in dtypes
        for size in sizes
    ]
    return list(dict.fromkeys(cases))


def goal_cases() -> list[Case]:
    """Every case that has a goal."""
    cases = [Case(op, size, dtype, ranks) for op, dtype, ranks in GOALS for size in SIZES]
    return [*cases, Case("barrier", 0, "float32", 2)]
