"""`torch-ccl bench`: sizes, goals, tables, JSON, and the extra that it needs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from support import ranks  # noqa: F401  (its server of processes has torch loaded)
from torch_ccl.cli.bench import calls, command, report
from torch_ccl.cli.bench import ranks as bench_ranks
from torch_ccl.cli.bench.cases import OPERATIONS, Case, goal_cases, make_cases
from torch_ccl.cli.bench.collectives import (
    BackendTimes,
    CaseResult,
    bench_collectives,
    print_results,
)
from torch_ccl.cli.bench.report import Figure, Goal
from torch_ccl.cli.bench.summary import (
    Summary,
    parse_size,
    size_text,
    time_summary_text,
    time_text,
)
from typer.testing import CliRunner


def result(size, ratio, ccl_us=10.0):
    ours, theirs = Summary.of([ccl_us]), Summary.of([ccl_us * ratio])
    times = {
        "ccl": BackendTimes(ours, ccl_us * 2, None),
        "gloo": BackendTimes(theirs, ccl_us * ratio * 2, Summary.of([ratio])),
    }
    return CaseResult(Case("all_reduce", size, "float32", 2), times)


# ---- sizes and times


@pytest.mark.parametrize(
    ("size", "text"),
    [(8, "8 B"), (1000, "1000 B"), (64 << 10, "64 KiB"), (16 << 20, "16 MiB"), (1 << 30, "1 GiB")],
)
def test_sizes_as_people_write_them(size, text):
    assert size_text(size) == text
    assert parse_size(text.replace(" ", "")) == size


def test_parse_size_units():
    assert [parse_size(text) for text in ("8", "4k", "4KB", "1M", "2G")] == [
        8,
        4 << 10,
        4 << 10,
        1 << 20,
        2 << 30,
    ]
    with pytest.raises(ValueError):
        parse_size("large")


def test_times_as_people_write_them():
    assert [time_text(us) for us in (6.12, 61.2, 612.4, 1520, 2.5e6)] == [
        "6.12 us",
        "61.2 us",
        "612 us",
        "1.52 ms",
        "2.50 s",
    ]
    assert time_summary_text(Summary(1520, 1500, 1610)) == "1.52 ms (1.50-1.61)"


# ---- cases and goals


def test_barrier_is_one_case():
    cases = make_cases(["all_reduce", "barrier"], [8, 64], ["float32", "int8"], 2)
    assert [case.op for case in cases] == ["all_reduce"] * 4 + ["barrier"]


def test_every_operation_has_a_function():
    from torch_ccl.cli.bench import operations

    assert tuple(operations.OPERATIONS) == OPERATIONS
    assert {case.op for case in goal_cases()} == set(OPERATIONS)


def test_worse_quartile_decides():
    summary = Summary.of([1.0, 2.0, 3.0, 4.0, 5.0])  # quartiles 2 and 4
    assert Goal(">=", 2).is_reached(summary)
    assert not Goal(">", 2).is_reached(summary)
    assert Goal("<=", 4).is_reached(summary)
    assert not Goal("<", 4).is_reached(summary)
    assert Figure("x", summary, "us", Goal("<=", 4)).goal_text == "reached <= 4"
    assert Figure("x", summary, "us").goal_text == ""


def test_goals_are_shown_only_on_request(capsys):
    results = [result(8, 29.0), result(64 << 20, 6.0)]  # goals 30 and 5
    print_results(results, ["ccl", "gloo"], goals=False)
    printed = capsys.readouterr().out
    assert "MISSED" not in printed and "goal" not in printed and "p99" in printed
    assert "goal" not in results[0].as_json(goals=False)

    print_results(results, ["ccl", "gloo"], goals=True)
    printed = capsys.readouterr().out
    assert "MISSED 30" in printed and "reached 5" in printed
    assert results[0].as_json(goals=True)["goal"] == 30


def test_figures_show_goals_only_on_request(capsys):
    figure = Figure("ratio", Summary.of([1.0]), "x", Goal(">=", 2.0))
    load = report.BackgroundLoad()
    report.print_figures("title", [figure], load, goals=False)
    assert "MISSED" not in capsys.readouterr().out
    report.print_figures("title", [figure], load, goals=True)
    assert "MISSED >= 2" in capsys.readouterr().out
    assert "goal" not in figure.as_json(goals=False)
    assert figure.as_json(goals=True)["reached"] is False


# ---- tables


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_follow_the_terminal(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    print_results([result(8, 29.0), result(64 << 20, 6.0, 20000.0)], ["ccl", "gloo"], goals=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    if width == 120:  # every row is one line
        assert any("64 MiB" in line and "20.0 ms (20.0-20.0)" in line for line in lines)


# ---- the command


def invoke(*arguments):
    app = typer.Typer()
    app.command()(command.bench)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ops", "all_reduce,gather"], "--ops: 'gather' is none of all_reduce, all_gather"),
        (["--programs", "train"], "--programs: 'train' is none of decode, ddp_step, fsdp2_step"),
        (["--peers", "intel"], "--peers: 'intel' is none of mpich, openmpi"),
        (["--sizes", "8,big"], "--sizes: '8,big' is not a list of numbers"),
        (["--ranks", "two"], "--ranks: 'two' is not a list of numbers"),
        (["--ops", "barrier", "--plot", "a.svg"], "--plot: a barrier has no sizes to plot"),
    ],
)
def test_invalid_options_are_named(arguments, message):
    outcome = invoke(*arguments)
    assert outcome.exit_code == 2
    assert message in outcome.output


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [("numpy", []), ("numpy", ["--footprint"]), ("matplotlib", ["--plot", "a.svg"])],
)
def test_missing_extra_is_named_in_one_line(missing, arguments, monkeypatch):
    find_spec = command.importlib.util.find_spec
    monkeypatch.setattr(
        command.importlib.util,
        "find_spec",
        lambda name: None if name == missing else find_spec(name),
    )
    outcome = invoke(*arguments)
    assert outcome.exit_code == 1
    line = f"torch-ccl bench: {missing} not installed: run pip install 'torch-ccl[bench]'\n"
    assert outcome.output == line


def test_command_line_imports_nothing_heavy():
    """Only modules of the command line count, not those that the package torch_ccl imports."""
    directory = Path(command.__file__).parent
    script = f"""
import sys, types
for name, path in (("torch_ccl", None), ("torch_ccl.cli", None)):
    module = types.ModuleType(name)
    module.__path__ = [{str(directory.parents[1])!r} if name == "torch_ccl"
                       else {str(directory.parent)!r}]
    sys.modules[name] = module
from torch_ccl.cli.bench import bench
print([name for name in ("torch", "numpy", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_small_run_writes_json_and_plots(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_ranks, "START_METHOD", "forkserver")
    cases = [Case("all_reduce", 8, "float32", 2), Case("barrier", 0, "float32", 2)]
    json_file, plot_file = tmp_path / "a.json", tmp_path / "a.svg"
    bench_collectives(cases, ["ccl", "gloo"], 1, False, json_file, plot_file)
    rows = json.loads(json_file.read_text())["rows"]
    assert [row["op"] for row in rows] == ["all_reduce", "barrier"]
    assert all(row["ccl"]["median_us"] > 0 and "times_slower" in row["gloo"] for row in rows)
    assert {path.name for path in tmp_path.glob("*.svg")} == {"a-light.svg", "a-dark.svg"}
    assert "all_reduce, float32, 2 ranks" in capsys.readouterr().out


def test_calls_are_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_ranks, "START_METHOD", "forkserver")
    monkeypatch.setattr(calls, "CALLS", 20)
    monkeypatch.setattr(calls, "NAMES", ("barrier", "functional all_reduce, wait"))
    json_file = tmp_path / "a.json"
    calls.bench_calls(1, True, json_file)
    names = [row["what"] for row in json.loads(json_file.read_text())["rows"]]
    assert "barrier: ccl, fast calls" in names
    assert "functional all_reduce, wait, 4 KiB: fast calls / fake" in names
