"""Fixtures of all tests, the rule for skips, the table of launchers, the counts of a run."""

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest
from support.commands import BUILD_DIR, ROOT

# On some CPUs torch's bfloat16 matrix product is wrong or missing beyond this instruction set.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Ranks share the cores; without this every rank starts as many threads as there are cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def program():
    """program("conformance") is the path of a built test program."""

    def find(name: str) -> Path:
        path = BUILD_DIR / "tests" / name
        assert path.exists(), f"{path} is not built: make library"
        return path

    return find


@pytest.fixture(scope="session")
def slurm():
    """A Slurm cluster with nodes n1 and n2; its start takes seconds, so all tests share it."""
    from support.slurm_cluster import cluster

    with cluster(nodes=2) as started:
        yield started


# ---- skips: on the reference machine a skip is a failure unless tests/allowed_skips lists it


def reference_machine() -> bool:
    try:
        release = Path("/etc/os-release").read_text()
    except OSError:
        return False
    fields = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    debian_12 = fields.get("ID") == "debian" and fields.get("VERSION_ID", "").strip('"') == "12"
    return os.geteuid() == 0 and debian_12


def allowed_skips() -> list[str]:
    lines = (ROOT / "tests/allowed_skips").read_text().splitlines()
    return [name for line in lines if (name := line.split("#")[0].strip())]


STRICT_SKIPS = reference_machine()
ALLOWED_SKIPS = tuple(allowed_skips())


def refuse_skip(report):
    if not STRICT_SKIPS or report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    if not report.nodeid.startswith(ALLOWED_SKIPS):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped but is not in tests/allowed_skips: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    report = yield
    refuse_skip(report)
    return report


# ---- the table of launchers and scripts


@pytest.fixture
def launch_table(record_property):
    """launch_table("MPICH", "train") adds the test's outcome to the table at the end."""

    def record(launcher: str, script: str) -> None:
        record_property("launched", (launcher, script))

    return record


def pytest_terminal_summary(terminalreporter):
    cells = {
        tuple(dict(report.user_properties)["launched"]): report.outcome
        for reports in terminalreporter.stats.values()
        for report in reports
        if "launched" in dict(getattr(report, "user_properties", ()))
    }
    if not cells:
        return
    scripts = list(dict.fromkeys(script for _, script in cells))
    launchers = list(dict.fromkeys(launcher for launcher, _ in cells))
    rows = [["", *scripts]]
    rows += [[each, *(cells.get((each, script), "-") for script in scripts)] for each in launchers]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    terminalreporter.section("launcher x script")
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        terminalreporter.write_line("  ".join(padded).rstrip())


# ---- the parallel phase (pytest-xdist)


def pytest_collection_modifyitems(items):
    """All tests of the session's Slurm cluster run on one worker."""
    for item in items:
        if "slurm" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("slurm"))


# ---- counts and durations of a run

DURATIONS_S: dict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report):
    DURATIONS_S[report.nodeid.partition("@")[0]] += report.duration  # xdist appends @<group>


def pytest_unconfigure(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.option.collectonly or not hasattr(reporter, "_session"):
        return

    def count(*outcomes):
        return sum(len(reporter.stats.get(outcome, [])) for outcome in outcomes)

    counts = {
        "passed": count("passed", "xpassed"),
        "failed": count("failed", "error"),
        "skipped": count("skipped", "xfailed"),
    }
    if summary := os.environ.get("TCCL_TEST_SUMMARY"):  # tools/run_tests.py adds up its phases
        Path(summary).write_text(json.dumps({"counts": counts, "durations_s": DURATIONS_S}))
    else:
        reporter.write_line(", ".join(f"{value} {outcome}" for outcome, value in counts.items()))
