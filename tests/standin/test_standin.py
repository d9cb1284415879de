"""The stand-in accelerator itself: asynchronous results, wrong ones if a wait is missing."""

import json
import os
import sys
from pathlib import Path

import pytest
from support import standin_checks
from support.commands import run
from support.ranks import run_script
from support.standin_device import environment

# The first test runs all checks, so all run on one worker.
pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("standin")]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str | None]:
    """The failure of each check, or None; one program runs all checks and imports torch once."""
    result = run(
        [sys.executable, Path(standin_checks.__file__)],
        env={**os.environ, **environment(), "OMP_NUM_THREADS": "1"},
    )
    lines = [json.loads(line) for line in result.output.splitlines() if line.startswith("{")]
    found = {line["name"]: line["failure"] for line in lines}
    assert found.keys() == standin_checks.CHECKS.keys(), result.output
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", standin_checks.CHECKS)
def test_standin(name, outcomes):
    assert outcomes[name] is None, outcomes[name]


def test_number_of_devices():
    script = "import torch; print(torch.standin.device_count(), torch.accelerator.device_count())"
    assert run_script(script, **environment(devices=2)) == "2 2\n"


@pytest.mark.parametrize("autoload", ["0", "1"])
def test_imported_by_name(autoload):
    """The import also works before torch has loaded the device."""
    script = "import standin, torch; print(torch.ones(2, device='standin:1').sum().item())"
    wanted = {**environment(), "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    assert run_script(script, **wanted) == "2.0\n"


def test_not_loaded_by_default():
    script = "import torch; print(torch._C._get_privateuse1_backend_name())"
    assert run_script(script) == "privateuseone\n"
