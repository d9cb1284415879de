import os

import pytest
from support.debug_levels import run_at_level

# On some CPUs torch's bfloat16 matrix product is wrong or missing beyond this instruction set.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Ranks share the cores; without this every rank starts as many threads as there are cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(params=["OFF", "DETAIL"])
def level(request) -> str:
    return request.param


@pytest.fixture(params=[2, 4], ids=["2 ranks", "4 ranks"])
def on_ranks(request, level):
    """on_ranks(check, *args) calls check(rank, size, *args) on 2 and 4 ranks, at each debug level.

    It returns what the ranks returned; on_ranks.size is their number.
    """

    def run(check, *args, **options) -> list:
        return run_at_level(level, request.param, check, *args, **options)

    run.size = request.param
    return run
