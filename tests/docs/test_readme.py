"""What README.md shows on its first screen works as it stands there."""

import re
import sys
from pathlib import Path

from support.commands import ROOT, run
from support.readme import ddp_script, python_block

BIN = Path(sys.executable).parent


def test_ddp_script(tmp_path):
    assert len(python_block().splitlines()) == 6
    (tmp_path / "train.py").write_text(ddp_script())
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    finished = run([sys.executable, *command], cwd=tmp_path)
    assert finished.returncode == 0, finished.output
    assert finished.output.count("ccl 2") == 2, finished.output


def test_a_dead_rank_is_named():
    finished = run([BIN / "torch-ccl", "run", "-n", "3", ROOT / "examples/dead_rank.py"], cwd=ROOT)
    assert finished.returncode == 128 + 9, finished.output
    for rank in (0, 2):
        reported = re.search(
            rf"rank {rank}, (?P<ms>[\d.]+) ms after the kill: .*"
            r"rank 1 \(host \S+, pid \d+\) died during allreduce #\d+",
            finished.output,
        )
        assert reported, finished.output
        assert float(reported["ms"]) < 5000  # milliseconds if the machine is not busy
