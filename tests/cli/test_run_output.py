"""`torch-ccl run`: the ranks' output."""

import subprocess
import time

import pytest
from support.launchers import clean_environment
from support.run_command import (
    COMMAND,
    run,
)


def test_output_is_whole_lines(tmp_path, script):
    text = """
for word in ("a", "b"):
    sys.stdout.write(word); sys.stdout.flush(); time.sleep(0.05)
sys.stdout.write("\\n\\n[x] end")
sys.stderr.write("err\\r\\nlast \\xe9")
"""
    command = run(tmp_path, "-n", "2", script(text))
    for rank in range(2):
        own = [line for line in command.out.split("\n") if line.startswith(f"[{rank}]")]
        assert own == [f"[{rank}] ab", f"[{rank}] ", f"[{rank}] [x] end"]
        assert f"[{rank}] err\r\n".encode() in command.stderr.read_bytes()
        assert f"[{rank}] last é\n".encode() in command.stderr.read_bytes()
    assert command.out.endswith("\n") and command.err.endswith("\n")


def test_large_output_is_complete(tmp_path, script):
    text = """
for i in range(20000):
    sys.stdout.write(f"{i} " + "x" * (i % 97) + "\\n")
    if i % 10 == 0:
        sys.stderr.write(f"{i}\\n")
"""
    command = run(tmp_path, "-n", "2", script(text))
    for rank in range(2):
        begin = f"[{rank}] "
        own = [line for line in command.out.splitlines() if line.startswith(begin)]
        assert own == [f"{begin}{i} " + "x" * (i % 97) for i in range(20000)]
        own = [line for line in command.err.splitlines() if line.startswith(begin)]
        assert own == [f"{begin}{i}" for i in range(0, 20000, 10)]


@pytest.mark.slow
def test_output_is_complete_with_a_slow_reader(tmp_path, script):
    """The output is larger than all pipes and buffers on the way."""
    path = script("for i in range(100000): sys.stdout.write(f'{i:060}\\n')")
    words = [COMMAND, "run", "-n", "1", path]
    with subprocess.Popen(words, env=clean_environment(), stdout=subprocess.PIPE) as process:
        begin = process.stdout.read(1)
        time.sleep(2)
        lines = (begin + process.stdout.read()).splitlines()
    assert lines == [f"[0] {i:060}".encode() for i in range(100000)]
