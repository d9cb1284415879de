"""`torch-ccl` itself: version, help, and that commands which do not need torch do not load it."""

import importlib.metadata
import subprocess
import sys
import time

import pytest
from support.launchers import clean_environment

GOAL_S = 0.3  # on an idle machine
LOAD_FACTOR = 10  # tests run beside others

#: Runs the command in-process, then prints the modules that it loaded.
RUN_AND_LIST_MODULES = """
import sys
import torch_ccl_command
sys.argv = ["torch-ccl", *sys.argv[1:]]
try:
    torch_ccl_command.main()
except SystemExit as end:
    assert not end.code, end.code
sys.stderr.write(" ".join(sys.modules))
"""

WITHOUT_TORCH = {
    "help": ["--help"],
    "version": ["--version"],
    "help of a command": ["bench", "--help"],
    "run": ["run", "-n", "1", "--no-python", "true"],
    "settings": ["info", "--settings"],
    "algorithms": ["info", "--algorithms"],
    "info": ["info", "--json"],
}


def torch_ccl(*words: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        words, env=clean_environment(**environment), capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("words", WITHOUT_TORCH.values(), ids=WITHOUT_TORCH)
def test_torch_is_not_loaded(words):
    ended = torch_ccl(sys.executable, "-c", RUN_AND_LIST_MODULES, *words)
    assert ended.returncode == 0, ended.stderr
    modules = ended.stderr.splitlines()[-1].split()
    assert "torch_ccl.cli" in modules
    assert not {"torch", "numpy", "matplotlib", "torch_ccl._C"} & set(modules)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["info", "--settings"]])
def test_time_to_answer(words):
    begin = time.monotonic()
    ended = torch_ccl(sys.executable, "-m", "torch_ccl_command", *words)
    assert ended.returncode == 0, ended.stderr
    assert time.monotonic() - begin < GOAL_S * LOAD_FACTOR


def test_version():
    ended = torch_ccl(sys.executable, "-m", "torch_ccl_command", "--version")
    assert ended.stdout == f"torch-ccl {importlib.metadata.version('torch-ccl')}\n"


@pytest.mark.parametrize("columns", [60, 120])
def test_tables_follow_the_width_of_the_terminal(columns):
    words = [sys.executable, "-m", "torch_ccl_command", "info", "--algorithms"]
    ended = torch_ccl(*words, COLUMNS=str(columns))
    assert ended.returncode == 0, ended.stderr
    assert max(map(len, ended.stdout.splitlines())) == columns


PUBLIC_NAMES_ON_DEMAND = """
import sys, torch_ccl_command
torch_ccl_command.defer_backend = True
import torch_ccl
assert "torch" not in sys.modules
assert torch_ccl.ProcessGroupCCL is torch_ccl._C.ProcessGroupCCL  # loads torch
import torch.distributed as dist
assert "ccl" in dist.Backend.backend_list and callable(torch_ccl.monitored_barrier)
print(torch_ccl.init().world_size)
"""


def test_public_names_are_loaded_on_demand():
    ended = torch_ccl(sys.executable, "-c", PUBLIC_NAMES_ON_DEMAND)
    assert (ended.stdout, ended.returncode) == ("1\n", 0), ended.stderr


def test_import_torch_ccl_registers_the_backend_at_once():
    """The program is not the command, and torch's autoload is off."""
    script = "import torch_ccl, torch_ccl_command, torch; torch.distributed.Backend('ccl').upper()"
    check = "; assert 'CCL' in torch.distributed.Backend._plugins"
    ended = torch_ccl(sys.executable, "-c", script + check, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert ended.returncode == 0, ended.stderr
