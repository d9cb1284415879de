"""pytest plugin: runs torchft's own tests on Gloo or ccl, and writes the outcomes to a file.

The environment has TORCHFT_SUITE_BACKEND, gloo or ccl, and TORCHFT_SUITE_RESULTS, the file; only
names that match TORCHFT_SUITE_TESTS run. With ccl, the classes of torch_ccl.torchft take the place
of torchft's Gloo classes. On both, the process of a Baby group has more time to start, for it
imports torch while the tests keep the machine busy.
"""

import json
import os
import re
from datetime import timedelta
from pathlib import Path

import torchft
from torchft import process_group

BACKEND = os.environ.get("TORCHFT_SUITE_BACKEND", "gloo")
PATIENCE = 6
SHORT_S = 5  # a shorter limit is itself tested


def classes_in_place_of_gloo() -> tuple[type, type]:
    if BACKEND == "gloo":
        return process_group.ProcessGroupGloo, process_group.ProcessGroupBabyGloo
    from torch_ccl.torchft import ProcessGroupBabyCCL, ProcessGroupCCL

    return ProcessGroupCCL, ProcessGroupBabyCCL


Group, _Baby = classes_in_place_of_gloo()


class Baby(_Baby):
    def __init__(self, timeout: timedelta | float = 60.0):
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        super().__init__(seconds * PATIENCE if seconds >= SHORT_S else seconds)


for module in (torchft, process_group):
    module.ProcessGroupGloo = Group
    module.ProcessGroupBabyGloo = Baby


# ---- tests and their outcomes


def pytest_collection_modifyitems(config, items):
    pattern = re.compile(os.environ.get("TORCHFT_SUITE_TESTS", ""))
    config.hook.pytest_deselected(items=[i for i in items if not pattern.search(i.nodeid)])
    items[:] = [item for item in items if pattern.search(item.nodeid)]


results: dict[str, dict] = {}


def pytest_collectreport(report):
    if report.failed:
        results[report.nodeid] = {"outcome": "failed", "error": str(report.longrepr)}


def pytest_runtest_logreport(report):
    """A test fails if its set-up or its end does."""
    result = results.setdefault(report.nodeid, {"outcome": "passed", "error": "", "seconds": 0})
    result["seconds"] += report.duration
    if report.outcome != "passed":
        result.update(outcome=report.outcome, error=str(report.longrepr))


def pytest_unconfigure():
    if path := os.environ.get("TORCHFT_SUITE_RESULTS"):
        Path(path).write_text(json.dumps(results))
