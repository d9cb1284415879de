"""Figures with their goals: as tables on the terminal and as JSON."""

import json
import operator
import os
import resource
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_ccl.cli.bench.summary import Summary
from torch_ccl.cli.machine import cpu_model
from torch_ccl.cli.tables import print_table

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """For example Goal(">=", 2.0). The worse quartile decides whether it is reached."""

    sign: str
    bound: float

    def is_reached(self, summary: Summary) -> bool:
        compare, worse = {
            ">=": (operator.ge, summary.low),
            ">": (operator.gt, summary.low),
            "<=": (operator.le, summary.high),
            "<": (operator.lt, summary.high),
        }[self.sign]
        return bool(compare(worse, self.bound))

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}"


@dataclass(frozen=True)
class Figure:
    """One measured quantity. A figure without a goal is for information."""

    name: str
    summary: Summary
    unit: str
    goal: Goal | None = None
    details: JsonObject = field(default_factory=dict)  # in the JSON file only

    @property
    def goal_text(self) -> str:
        if self.goal is None:
            return ""
        return f"{'reached' if self.goal.is_reached(self.summary) else 'MISSED'} {self.goal}"

    def as_json(self, goals: bool) -> JsonObject:
        row: JsonObject = {
            "what": self.name,
            "unit": self.unit,
            "median": self.summary.median,
            "quartiles": self.summary.quartiles,
        }
        if goals and self.goal:
            row |= {"goal": str(self.goal), "reached": self.goal.is_reached(self.summary)}
        return row | self.details


class BackgroundLoad:
    """CPUs that other programs use during the measurement: their load distorts the figures."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._start_cpu_s = self._other_cpu_s()

    @staticmethod
    def _other_cpu_s() -> float:
        """CPU time of the machine, less that of this process and of its children that ended."""
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
        machine_s = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return machine_s - sum(usage.ru_utime + usage.ru_stime for usage in usages)

    def cpus(self) -> float:
        elapsed_s = time.monotonic() - self._start
        return max(0.0, (self._other_cpu_s() - self._start_cpu_s) / elapsed_s)

    def __str__(self) -> str:
        return f"load of other programs: {self.cpus():.2f} CPUs"


def print_figures(title: str, figures: list[Figure], load: BackgroundLoad, goals: bool) -> None:
    columns = ["", "median (quartiles)", *(["goal"] if goals else [])]
    rows = [
        [figure.name, figure.summary.text(figure.unit), *([figure.goal_text] if goals else [])]
        for figure in figures
    ]
    print_table(title, columns, rows, caption=str(load), figures=True)


def commit() -> str:
    """The commit of the working directory, if it is a git checkout."""
    command = ["git", "describe", "--always", "--dirty"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


def write_json(path: Path, rows: list[JsonObject], **facts: Any) -> None:
    machine = {"cpu": cpu_model(), "commit": commit()}
    path.write_text(json.dumps({**machine, **facts, "rows": rows}, indent=1))
