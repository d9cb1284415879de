"""The rows of mutants.toml fit the sources, so that `make mutants` can try each of them."""

import json
import shlex
import shutil
import tomllib

import pytest
from support.commands import BUILD_DIR, ROOT, run

MUTANTS = tomllib.loads((ROOT / "tests/mutants/mutants.toml").read_text())["mutant"]
EACH_MUTANT = pytest.mark.parametrize("mutant", MUTANTS, ids=[row["name"] for row in MUTANTS])


@EACH_MUTANT
def test_text_occurs_once(mutant):
    assert (ROOT / mutant["file"]).read_text().count(mutant["find"]) == 1


def sources_of(file):
    """The .cc file itself; for a header those of its folder."""
    return [file] if file.suffix == ".cc" else sorted(file.parent.glob("*.cc"))


def compile_command(source) -> list[str]:
    table = json.loads((BUILD_DIR / "compile_commands.json").read_text())
    (command,) = {row["command"] for row in table if row["file"] == str(source)}
    words = shlex.split(command)
    return [*words[: words.index("-o")], "-fsyntax-only"]


@pytest.mark.slow
@EACH_MUTANT
def test_mutant_compiles(mutant, tmp_path):
    for folder in ("src", "include"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    mutated = tmp_path / mutant["file"]
    mutated.write_text(mutated.read_text().replace(mutant["find"], mutant["replace"]))
    for source in sources_of(ROOT / mutant["file"]):
        words = [*compile_command(source), source]
        result = run([str(word).replace(str(ROOT), str(tmp_path)) for word in words])
        assert result.returncode == 0, result.output
