"""tools/setup.sh with a Python that has torch already."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.commands import ROOT, run
from support.python_environments import make_environment


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_torch_of_python_is_used(tmp_path):
    """Also by the environments that tests make beside it."""
    venv = tmp_path / "venv"
    variables = {**os.environ, "PYTHON": sys.executable, "VENV": str(venv), "TORCH": ""}
    finished = run([ROOT / "tools/setup.sh"], env=variables)
    assert finished.returncode == 0, finished.output
    assert not list(venv.glob("lib/python3*/site-packages/torch"))
    beside = make_environment(tmp_path / "beside", seen=venv)
    for python in (venv / "bin/python", beside.python):
        found = subprocess.check_output([python, "-c", "import torch; print(torch.__file__)"])
        assert Path(found.decode().strip()) == Path(torch.__file__)
