import pytest
from support.debug_levels import run_at_level


@pytest.fixture(params=["OFF", "DETAIL"])
def level(request) -> str:
    return request.param


@pytest.fixture(params=[2, 4], ids=["2 ranks", "4 ranks"])
def on_ranks(request, level):
    """on_ranks(check, *args) calls check(rank, size, *args) on 2 and 4 ranks, at each debug level.

    It returns the ranks' return values; on_ranks.size is the number of ranks.
    """

    def run(check, *args, **options) -> list:
        return run_at_level(level, request.param, check, *args, **options)

    run.size = request.param
    return run
