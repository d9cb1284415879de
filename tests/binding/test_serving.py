"""vLLM and SGLang on CPU (docs/serving.md): their calls, with CCL_REPLACE=gloo and nothing else.

In new interpreters, because the variable is read when torch is imported.
"""

import pytest
from support.commands import ROOT
from support.launchers import free_port
from support.parameters import slow
from support.ranks import BOUND_S, start_script

RANK = f"""
import faulthandler, sys
faulthandler.dump_traceback_later({BOUND_S - 10}, exit=True)
{{before}}
sys.path.insert(0, {str(ROOT / "tests")!r})
from support import serving_calls
{{after}}
serving_calls.serve(*map(int, sys.argv[1:]))
"""


def run_servers(before: str = "", after: str = "", **environment: str) -> list[tuple[int, str]]:
    """Returns exit codes and stderr of two ranks. `before` and `after` are code around the import
    of serving_calls."""
    ports = str(free_port()), str(free_port())
    script = RANK.format(before=before, after=after)
    ranks = [start_script(script, str(rank), *ports, **environment) for rank in range(2)]
    try:
        printed = [rank.communicate(timeout=BOUND_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, err) for rank, (_, err) in zip(ranks, printed, strict=True)]


BY_TORCH_ALONE = """
import torch.distributed as dist
assert "__wrapped__" in vars(dist.ProcessGroupGloo), "import torch has not replaced gloo"
"""


def test_calls_of_servers():
    for code, printed in run_servers(before=BY_TORCH_ALONE, CCL_REPLACE="gloo"):
        assert code == 0, printed


@pytest.mark.parametrize(
    "after, assertion",
    [
        slow("", "assert is_ours(group)"),
        (
            "serving_calls.is_ours = lambda group: True",
            "AssertionError: ccl has started no operation",
        ),
    ],
    ids=["class of the group", "which backend ran the operation"],
)
def test_without_the_variable(after, assertion):
    """Without the variable each of the two assertions fails."""
    ranks = run_servers(after=after, CCL_REPLACE="")
    assert all(code for code, _ in ranks), ranks
    # The second rank may find that the first has exited.
    assert any(assertion in printed for _, printed in ranks), ranks
