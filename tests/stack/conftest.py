import pytest
from support.debug_levels import run_at_level


def combination(size: int, level: str, marks=()):
    return pytest.param((size, level), id=f"{size} ranks-{level}", marks=marks)


@pytest.fixture(params=["OFF", "DETAIL"])
def level(request) -> str:
    return request.param


@pytest.fixture(
    params=[
        combination(2, "OFF"),
        combination(4, "DETAIL"),
        combination(2, "DETAIL", pytest.mark.slow),
        combination(4, "OFF", pytest.mark.slow),
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
