"""The explorer finds each change of weakenings.toml in the shared-memory protocol.

protocol_model_test itself, with the code as it is, also runs in unit/test_cpp.py, in seconds.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from support.commands import BUILD_DIR, ROOT, run
from support.parameters import slow

HERE = Path(__file__).parent
SOURCE = HERE / "protocol_model_test.cc"
WEAKENINGS = tomllib.loads((HERE / "weakenings.toml").read_text())["weakening"]


def weakened(weakening: dict) -> str:
    """The text of the file with the change."""
    text = (ROOT / weakening["file"]).read_text()
    edits = weakening.get("edits") or [[weakening["find"], weakening["replace"]]]
    for find, replace in edits:
        assert text.count(find) == 1, f"occurs {text.count(find)} times: {find!r}"
        text = text.replace(find, replace)
    return text


def build_with(overlay: Path, program: Path):
    """protocol_model_test, with the files in `overlay` before those of the same name in src/."""
    commands = json.loads((BUILD_DIR / "compile_commands.json").read_text())
    entry = next(entry for entry in commands if entry["file"] == str(SOURCE))
    command = shlex.split(entry["command"])
    first_include = next(i for i, word in enumerate(command) if word.startswith("-I"))
    command.insert(first_include, f"-I{overlay}")
    compiled = str(program.with_suffix(".o"))
    command[command.index("-o") + 1] = compiled
    call([*command, "-O0"])
    compiler, *libraries = (BUILD_DIR / "tests/protocol_model_link.txt").read_text().split(";")
    call([compiler, compiled, *libraries, "-o", str(program)])


def call(command: list[str]):
    result = subprocess.run(command, cwd=BUILD_DIR, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, f"{shlex.join(command)}\n{result.stderr[-3000:]}"


def test_every_change_applies():
    for weakening in WEAKENINGS:
        assert weakened(weakening) != (ROOT / weakening["file"]).read_text()


# Each is compiled for ten seconds and more: `make test` has those with `quick = true`.
@pytest.mark.parametrize(
    "weakening",
    [row if row.get("quick") else slow(row) for row in WEAKENINGS],
    ids=[row["name"] for row in WEAKENINGS],
)
def test_a_weaker_protocol_is_noticed(weakening):
    # Not in tmp_path: with the same path again, ccache knows the object.
    directory = BUILD_DIR / "weakened" / re.sub(r"\W+", "-", weakening["name"])
    shutil.rmtree(directory, ignore_errors=True)
    changed = directory / "overlay" / Path(weakening["file"]).relative_to("src")
    changed.parent.mkdir(parents=True)
    changed.write_text(weakened(weakening))
    program = directory / "weakened"
    build_with(directory / "overlay", program)
    result = run([program, f"--gtest_filter=ProtocolModel.{weakening['test']}"])
    assert result.returncode != 0, "the changed protocol passes"
    assert weakening["violation"] in result.output, result.output


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_deeper_exploration_finds_nothing(program):
    result = run([program("protocol_model_test")], env=os.environ | {"TCCL_MODEL_DEPTH": "1"})
    assert result.returncode == 0, result.output
