"""The pages in the repository: links lead somewhere, and the tests and commands they name exist."""

import re
from pathlib import Path

import pytest
from support.commands import ROOT

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "tests/README.md",
]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
CODE_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def prose(page: Path) -> str:
    return CODE_BLOCK.sub("", page.read_text())


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and mkdocs make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", heading).strip().lower()
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text))


def anchors(page: Path) -> set[str]:
    return {slug(found[1]) for found in re.finditer(r"^#+ (.+)$", prose(page), re.MULTILINE)}


def links(page: Path) -> list[str]:
    text = prose(page)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert target.suffix == ".md" and anchor in anchors(target), f"{link}: no such heading"


def test_links_are_found():
    assert sum(len(links(page)) for page in PAGES) > 100


def test_named_tests_exist():
    """A page may name a test: `tests/x/test_y.py::test_z`."""
    named = set()
    for page in PAGES:
        named |= set(re.findall(r"`(tests/[\w/]+\.(?:py|cc))(?:::(\w+))?", page.read_text()))
    assert len(named) > 20
    for file, test in sorted(named):
        text = (ROOT / file).read_text()
        assert f"def {test}(" in text or not test, f"{file} has no {test}"


def test_named_make_targets_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set()
    for page in PAGES:
        named |= set(re.findall(r"(?:`|^)make ([a-z][\w-]*)", page.read_text(), re.MULTILINE))
    assert len(named) > 10
    assert named <= targets


def test_named_settings_exist():
    """Every CCL_* on a page is a row of docs/settings.md."""
    known = set(
        re.findall(r"^\| `(CCL_\w+)`", (ROOT / "docs/settings.md").read_text(), re.MULTILINE)
    )
    assert len(known) > 20
    for page in PAGES:
        named = set(re.findall(r"\bCCL_[A-Z_]*[A-Z]\b", page.read_text()))
        assert named <= known | {"CCL_X"}, page.name


def test_tree_names_files_that_exist():
    """The tree in architecture.md: a word with an underscore is a file of that folder of src/."""
    no_files = {"parallel_for", "one_shot", "two_shot"}
    (tree,) = re.findall(
        r"^```\n(include/tccl/ .*?)^```", (ROOT / "docs/architecture.md").read_text(), re.M | re.S
    )
    named = 0
    for entry in re.split(r"^(?=\S)", tree, flags=re.MULTILINE):
        if not entry.startswith("src/"):
            continue
        folder = ROOT / entry.split()[0]
        words = set(re.findall(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b", entry)) - no_files
        assert words <= {path.stem for path in folder.iterdir()}, folder
        named += len(words)
    assert named > 40


def test_walkthrough_names_functions_that_exist():
    """[`Class::function`](file): the file has that name, qualified where the file is a .cc."""
    page = ROOT / "docs/walkthrough.md"
    stops = re.findall(r"\[`([\w:]+)`\]\(([^)]+\.(?:cc|h))\)", page.read_text())
    assert len(stops) > 12
    for name, link in stops:
        text = (page.parent / link).read_text()
        assert re.search(rf"\b{re.escape(name)}\b", text), f"{link} has no {name}"
