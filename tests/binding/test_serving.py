"""vLLM and SGLang on CPU (docs/serving.md): their calls, with CCL_REPLACE=gloo and nothing else.

In fresh interpreters, for the variable counts when torch is imported.
"""

from pathlib import Path

from launching import free_port
from ranks import BOUND_S, start_script

RANK = f"""
import faulthandler, sys
faulthandler.dump_traceback_later({BOUND_S - 10}, exit=True)
import torch.distributed as dist
assert "__wrapped__" in vars(dist.ProcessGroupGloo), "gloo is not replaced"
sys.path.insert(0, {str(Path(__file__).parent)!r})
import server_calls
server_calls.serve(*map(int, sys.argv[1:]))
"""


def run_servers(**environment: str) -> list[tuple[int, str]]:
    """Exit codes of two ranks and what they said."""
    ports = str(free_port()), str(free_port())
    ranks = [start_script(RANK, str(rank), *ports, **environment) for rank in range(2)]
    try:
        said = [rank.communicate(timeout=BOUND_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, err) for rank, (_, err) in zip(ranks, said, strict=True)]


def test_calls_of_servers():
    for code, said in run_servers(CCL_REPLACE="gloo"):
        assert code == 0, said


def test_without_the_variable():
    """It is what makes the difference."""
    for code, said in run_servers(CCL_REPLACE=""):
        assert code == 1 and "gloo is not replaced" in said
