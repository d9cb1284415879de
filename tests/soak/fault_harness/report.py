"""Counts and latencies of a run."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from fault_harness.judge import Problem, Verdict
from fault_harness.table import Effect
from fault_harness.trial import Trial

KINDS = ["hang", "crash", "wrong result", "wrong name", "no error", "error", "leak", "no new group"]
#: From the fault to the error in Python, on one host, of ranks that end or abort.
GOALS_MS = {"p50": (0.5, 5.0), "max": (1.0, 100.0)}
HEADER = f"{'fault, where':28} {'errors':>7} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} "


@dataclass
class Row:
    latencies_ms: list[float] = field(default_factory=list)
    at_timeout: int = 0  # errors that came no earlier
    without_error: int = 0  # trials

    def add(self, verdict: Verdict) -> None:
        self.latencies_ms += verdict.latencies_ms
        self.at_timeout += verdict.at_timeout
        self.without_error += not verdict.latencies_ms and not verdict.at_timeout

    def text(self) -> str:
        ordered = sorted(self.latencies_ms)
        shown = [f"{percentile(ordered, p):8.1f}" if ordered else " " * 8 for p in (0.5, 0.99, 1)]
        return f"{len(ordered):7} {' '.join(shown)} {self.at_timeout:11} {self.without_error:14}"


class Report:
    def __init__(self, over_hosts: bool) -> None:
        self._over_hosts = over_hosts
        self._rows: dict[str, Row] = defaultdict(Row)
        self._all, self._ended = Row(), Row()
        self.problems: Counter[str] = Counter()
        self.trials = 0

    def add(self, trial: Trial, verdict: Verdict) -> None:
        self.trials += 1
        rows = [self._rows[f"{trial.fault_name}, {trial.phase}"], self._all]
        if trial.fault.effect in (Effect.LOST, Effect.ABORTED):
            rows.append(self._ended)
        for row in rows:
            row.add(verdict)

    def add_problem(self, problem: Problem) -> None:
        self.trials += 1
        self.problems[problem.kind] += 1

    def print(self) -> None:
        print(HEADER + "at timeout  without error")
        for name, row in [
            *sorted(self._rows.items()),
            ("rank ends", self._ended),
            ("all", self._all),
        ]:
            print(f"{name:28} {row.text()}")
        if not self._over_hosts and self._ended.latencies_ms:
            ordered = sorted(self._ended.latencies_ms)
            for name, (share, goal) in GOALS_MS.items():
                found = percentile(ordered, share)
                met = "met" if found <= goal else "missed"
                print(f"goal: {name} {goal:.0f} ms: {met}, {found:.1f} ms")
        kinds = [*KINDS, *(self.problems.keys() - KINDS)]
        counts = ", ".join(f"{kind}: {self.problems[kind]}" for kind in kinds)
        print(f"faults: {self.trials} trials; {counts}")


def percentile(ordered: list[float], share: float) -> float:
    return ordered[round(share * (len(ordered) - 1))]
