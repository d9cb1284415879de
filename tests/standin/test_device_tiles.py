"""torch_ccl.single_card on the devices of the stand-in accelerator."""

import json
import sys
from pathlib import Path

import pytest
from support.commands import CommandResult, run
from support.launchers import clean_environment
from support.standin_device import environment

SCRIPT = """
import json, os, sys
from pathlib import Path
import torch
import torch_ccl
from torch_ccl.single_card import single_card_dist

def train(directory, backend):
    if backend:
        torch_ccl.init(backend)
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)  # weights and data differ; the first rank's weights count
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    tile = single_card_dist(torch.nn.Linear(4, 1), range(8))
    weight = tile.model.module.weight
    before = weight.tolist()
    optimizer = torch.optim.SGD(tile.model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        output = tile.model(x.to(weight.device))
        torch.nn.functional.mse_loss(output, y.to(weight.device)).backward()
        optimizer.step()
    report = {"rank": tile.rank, "before": before, "after": weight.tolist(), "data": x.tolist()}
    report["devices"] = sorted({str(each.device) for each in tile.model.parameters()})
    (Path(directory) / f"{rank}.json").write_text(json.dumps(report))

if __name__ == "__main__":
    sys.exit(single_card_dist.multi_process_spawn(train, tuple(sys.argv[1:])))
"""


def run_training(directory: Path, backend: str = "", **more: str) -> CommandResult:
    script = directory / "train.py"
    script.write_text(SCRIPT)
    wanted = clean_environment(**environment(devices=2), **more)
    return run([sys.executable, script, directory, backend], env=wanted)


def assert_trained(directory: Path) -> None:
    first, second = (json.loads((directory / f"{rank}.json").read_text()) for rank in range(2))
    assert [first["rank"], second["rank"]] == [0, 1]
    assert [first["devices"], second["devices"]] == [["standin:0"], ["standin:1"]]
    assert first["data"] != second["data"]
    assert first["before"] == second["before"] != first["after"]
    assert first["after"] == second["after"]


def test_rank_trains_on_its_device(tmp_path):
    result = run_training(tmp_path, CCL_DEVICES="standin")
    assert result.returncode == 0, result.output
    assert_trained(tmp_path)


@pytest.mark.slow
def test_group_of_the_script(tmp_path):
    result = run_training(tmp_path, backend="cpu:gloo,standin:ccl")
    assert result.returncode == 0, result.output
    assert_trained(tmp_path)


@pytest.mark.slow
def test_device_without_backend(tmp_path):
    result = run_training(tmp_path)
    assert result.returncode == 1
    line = "no backend of the default group serves standin tensors: set CCL_DEVICES=standin before"
    assert line in result.output, result.output
