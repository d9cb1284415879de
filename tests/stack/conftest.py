import pytest
from support.debug_levels import run_at_level
from support.parameters import slow


@pytest.fixture(params=["OFF", slow("DETAIL")])
def level(request) -> str:
    return request.param


@pytest.fixture(
    params=[
        pytest.param((4, "OFF"), id="4 ranks-OFF"),
        slow((2, "OFF"), id="2 ranks-OFF"),
        slow((2, "DETAIL"), id="2 ranks-DETAIL"),
        slow((4, "DETAIL"), id="4 ranks-DETAIL"),
    ]
)
def on_ranks(request):
    """on_ranks(check, *args) calls check(rank, size, *args) on 2 and 4 ranks, at each debug level.

    It returns the ranks' return values; on_ranks.size is the number of ranks, on_ranks.level the
    debug level.
    """
    size, level = request.param

    def run(check, *args, **options) -> list:
        return run_at_level(level, size, check, *args, **options)

    run.size, run.level = size, level
    return run
