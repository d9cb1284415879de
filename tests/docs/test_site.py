"""The site of `make docs`: it builds without a warning, needs no network and shows its parts."""

import re
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageChops
from support.commands import ROOT, run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]

WINDOW = (1280, 1000)
HEADER_COLOR = (64, 81, 181)  # the theme's indigo
EMPTY_SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="800" height="340"/>'


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", directory]
    built = run(command, cwd=ROOT, env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"})
    assert built.returncode == 0, built.output
    assert "WARNING" not in built.output, built.output
    return directory


def chromium(url: str, profile: Path, *options: str) -> str:
    browser = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    offline = ("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}")
    window = ("--virtual-time-budget=5000", "--window-size={},{}".format(*WINDOW))
    finished = run(["timeout", "60", *browser, *offline, *window, *options, url])
    assert finished.returncode == 0, finished.output
    return finished.output


def dom(page: Path, profile: Path, query: str = "") -> str:
    """The document as it is after its scripts have run."""
    return chromium(f"file://{page}{query}", profile, "--dump-dom")


def screenshot(page: Path, file: Path, *options: str) -> Image.Image:
    chromium(f"file://{page}", file.with_suffix(".profile"), f"--screenshot={file}", *options)
    return Image.open(file).convert("RGB")


def test_pages_load_nothing_from_the_network(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        loaded = re.findall(
            r'<(?:script|img|link|iframe)\b[^>]*(?:src|href)="(\w+:[^"]*)"', page.read_text()
        )
        assert [url for url in loaded if not url.startswith("data:")] == [], page.name


def test_navigation(site, tmp_path):
    document = dom(site / "index.html", tmp_path)
    tabs = re.findall(r'class="md-tabs__link"[^>]*>\s*([^<]+?)\s*<', document)
    assert tabs == ["Home", "Start", "Use", "Reference", "Development"]
    image = screenshot(site / "index.html", tmp_path / "index.png")
    assert image.size == WINDOW
    header = image.crop((0, 0, WINDOW[0], 90))
    pixels = header.width * header.height
    counts = {color: count for count, color in header.getcolors(pixels)}
    assert counts[HEADER_COLOR] > 0.7 * pixels, "the bar with the navigation is not at the top"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_plot_is_on_the_first_screen(site, tmp_path, theme):
    """The plot is what changes when its file is replaced by an empty image."""
    dark_mode = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"]
    options = dark_mode if theme == "dark" else ["--blink-settings=preferredColorScheme=1"]
    plot = site / f"images/allreduce-{theme}.svg"
    shown = screenshot(site / "index.html", tmp_path / "plot.png", *options)
    drawing = plot.read_text()
    plot.write_text(EMPTY_SVG)
    try:
        without = screenshot(site / "index.html", tmp_path / "without.png", *options)
    finally:
        plot.write_text(drawing)
    box = ImageChops.difference(shown, without).getbbox()
    assert box, f"{plot.name} is not visible"
    left, top, right, bottom = box
    assert right - left > 400 and bottom - top > 150 and top < 400, box


def test_search(site, tmp_path):
    document = dom(site / "index.html", tmp_path, "?q=libfabric")
    found = re.search(r"(\d+) matching documents", document)
    assert found and int(found[1]) > 5
    assert "two-servers.html?h=libfabric" in document


def test_api_pages(site):
    cpp = (site / "api/cpp.html").read_text()
    for name in ("communicator", "operation", "allreduce", "file_store", "errc"):
        assert re.search(rf'<h3 id="{name}"', cpp), name
    python = (site / "api/python.html").read_text()
    for name in ("init", "empty", "monitored_barrier", "replace", "hooks.bf16_between_hosts"):
        assert re.search(rf'id="torch_ccl\.{name}"', python), name


def test_diagrams(site, tmp_path):
    document = dom(site / "how-it-works.html", tmp_path)
    for name in ("layers", "one-allreduce"):
        assert f'src="images/{name}.svg"' in document
        assert (site / f"images/{name}.svg").read_text().startswith("<svg")
