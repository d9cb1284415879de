"""Each fuzz program on the inputs of its corpus, and for a moment on mutations of them.

The programs of build/fuzz (`make fuzz`) check memory and undefined behaviour, too: they are used
instead of those of build/release if they exist. The corpora are what `make fuzz` has found, reduced
to inputs that reach different code.
"""

import random
from pathlib import Path

import pytest
from support.commands import BUILD_DIR, ROOT, run

HERE = Path(__file__).parent
HARNESSES = sorted(path.name.removesuffix("_fuzz.cc") for path in HERE.glob("*_fuzz.cc"))
SECONDS = 2


def command(harness: str, corpus: Path) -> list:
    seed = str(random.SystemRandom().randrange(1, 2**31))
    sanitized = ROOT / "build/fuzz/tests" / f"{harness}_fuzz"
    if BUILD_DIR == ROOT / "build/release" and sanitized.exists():
        times = [f"-max_total_time={SECONDS}", f"-seed={seed}", "-max_len=16384"]
        return [sanitized, *times, corpus]
    program = BUILD_DIR / "tests" / f"{harness}_fuzz"
    assert program.exists(), f"{program} is not built: make library"
    return [program, corpus, "--seconds", str(SECONDS), "--seed", seed]


@pytest.mark.parametrize("harness", HARNESSES)
def test_no_input_of_a_stranger_does_harm(harness, tmp_path):
    # A copy: libFuzzer writes what it finds into the corpus.
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for path in sorted((HERE / "corpus" / harness).iterdir()):
        (corpus / path.name).write_bytes(path.read_bytes())
    words = command(harness, corpus)
    result = run(words, cwd=tmp_path)
    crashed = [
        path.name for path in tmp_path.iterdir() if path.name.startswith(("crash-", "leak-"))
    ]
    text = f"{words}\n{result.output[-5000:]}\nin {tmp_path}: {crashed}"
    assert result.returncode == 0, text


def test_every_corpus_has_a_harness():
    assert sorted(path.name for path in (HERE / "corpus").iterdir()) == HARNESSES
