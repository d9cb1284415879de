"""The rows of `make bench-hosts`: operations on a layout of hosts and ranks, and their goals."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from torch_ccl.cli.bench.cases import Case
from torch_ccl.cli.bench.report import Figure, Goal, JsonObject
from torch_ccl.cli.bench.summary import Summary, ratios, size_text

MIB = 1 << 20
GBIT_BYTES_PER_S = 1e9 / 8


# ---- what is measured


@dataclass(frozen=True)
class Variant:
    """A backend, and the dtype in which it sends elements between hosts."""

    backend: str
    wire_dtype: str = ""  # empty: the tensor's own

    @property
    def name(self) -> str:
        return f"{self.backend} {self.wire_dtype}".strip()

    @property
    def environment(self) -> dict[str, str]:
        return {"CCL_WIRE_DTYPE": self.wire_dtype} if self.wire_dtype else {}


class Measurements:
    """Holds for each alternation of a variant the median time, and the bytes that a host sent."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.sent_bytes: list[float] = []  # per call, of the host that sent most

    @property
    def us(self) -> Summary:
        return Summary.of(seconds * 1e6 for seconds in self.seconds)

    def as_json(self) -> JsonObject:
        return {
            "median_us": self.us.median,
            "quartiles_us": self.us.quartiles,
            "sent_bytes": statistics.median(self.sent_bytes),
        }


Results = dict[str, Measurements]  # by the name of the variant


@dataclass(frozen=True)
class Row:
    hosts: int
    ranks: int  # on each host
    op: str
    bytes: int
    goals: tuple["GoalCheck", ...]
    rate: str = ""  # limit of every link in both directions
    wire_dtypes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        rate = self.rate or "unlimited"
        return f"{self.hosts}x{self.ranks} {rate} {self.op} {size_text(self.bytes)}"

    def variants(self, backends: list[str]) -> list[Variant]:
        wire_dtypes = self.wire_dtypes if "ccl" in backends else ()
        return [
            *(Variant(backend) for backend in backends),
            *(Variant("ccl", wire_dtype) for wire_dtype in wire_dtypes),
        ]

    def case(self, variant: Variant) -> Case:
        op = self.op + ("_rounded" if variant.wire_dtype else "")
        return Case(op, self.bytes, "float32", self.hosts * self.ranks)

    def min_sent_bytes(self) -> float:
        """The least that a host must send for an all_reduce."""
        return 2 * (self.hosts - 1) / self.hosts * self.bytes


# ---- goals: each compares measurements of a row; None if a variant that it needs did not run


@dataclass(frozen=True)
class GoalResult:
    variant: str
    figure: Figure


GoalCheck = Callable[[Row, Results], GoalResult | None]


def speedup(slow: str, fast: str, goal: float) -> GoalCheck:
    """How many times faster one variant is than another."""

    def check(row: Row, results: Results) -> GoalResult | None:
        if slow not in results or fast not in results:
            return None
        ratio = Summary.of(ratios(results[slow].seconds, results[fast].seconds))
        return GoalResult(fast, Figure(f"{slow} / {fast}", ratio, "x", Goal(">=", goal)))

    return check


def bandwidth_share(goal: float) -> GoalCheck:
    """The time that the link needs at its full rate, divided by the measured time."""

    def check(row: Row, results: Results) -> GoalResult | None:
        if "ccl" not in results:
            return None
        link_s = row.min_sent_bytes() / GBIT_BYTES_PER_S
        share = Summary.of(link_s / seconds for seconds in results["ccl"].seconds)
        return GoalResult("ccl", Figure("share of the bandwidth", share, "", Goal(">=", goal)))

    return check


def sent_bytes(goal: float) -> GoalCheck:
    def check(row: Row, results: Results) -> GoalResult | None:
        if "ccl" not in results:
            return None
        ratio = Summary.of(sent / row.min_sent_bytes() for sent in results["ccl"].sent_bytes)
        return GoalResult("ccl", Figure("bytes sent / minimum", ratio, "x", Goal("<=", goal)))

    return check


def faster(goal: float) -> tuple[GoalCheck, ...]:
    return (speedup("gloo", "ccl", goal),)


GBIT = "1gbit"
FULL_BANDWIDTH = (bandwidth_share(0.92), speedup("gloo", "ccl", 1.0))
HIERARCHY = (
    speedup("gloo", "ccl", 1.4),
    sent_bytes(1.05),
    speedup("ccl", "ccl bf16", 1.9),
    speedup("ccl", "ccl int8", 3.3),
)

ROWS = (
    Row(2, 1, "ping_pong", 8, faster(8)),
    Row(2, 1, "ping_pong", 4 << 10, faster(8)),
    Row(2, 1, "all_reduce", 8, faster(20)),
    Row(2, 1, "all_reduce", 4 << 10, faster(20)),
    Row(4, 1, "all_reduce", 8, faster(30)),
    Row(4, 1, "all_reduce", 4 << 10, faster(30)),
    Row(4, 1, "all_reduce", 1 * MIB, FULL_BANDWIDTH, GBIT),
    Row(4, 1, "all_reduce", 16 * MIB, FULL_BANDWIDTH, GBIT),
    Row(4, 1, "all_reduce", 64 * MIB, FULL_BANDWIDTH, GBIT),
    Row(2, 2, "all_reduce", 16 * MIB, HIERARCHY, GBIT, wire_dtypes=("bf16", "int8")),
)
