"""docs/compatibility.md names tests that exist."""

import re

from support.commands import ROOT


def test_every_test_that_the_page_names_exists():
    page = (ROOT / "docs/compatibility.md").read_text()
    named = set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?", page))
    assert len(named) > 30
    for file, test in sorted(named):
        text = (ROOT / file).read_text()
        assert f"def {test}(" in text or not test, f"{file} has no {test}"
