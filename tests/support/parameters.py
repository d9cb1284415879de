"""Parameters of tests."""

import pytest


def slow(*values, **options):
    """A row of parametrize() that runs in `make test-all` only."""
    return pytest.param(*values, marks=pytest.mark.slow, **options)
