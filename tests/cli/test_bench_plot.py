"""The SVG files of `torch-ccl bench --plot`: labels, ratios, bands, both themes."""

import xml.etree.ElementTree as ElementTree

import pytest
from torch_ccl.cli.bench.cases import Case
from torch_ccl.cli.bench.collectives import BackendTimes, CaseResult
from torch_ccl.cli.bench.plot import THEMES, write_plots
from torch_ccl.cli.bench.summary import Summary

SVG = "{http://www.w3.org/2000/svg}"
TIMES_US = {8: (14, 420), 64 << 10: (31, 700), 16 << 20: (4000, 21000), 64 << 20: (20000, 30000)}


def band(median):
    return Summary(median, median * 0.9, median * 1.1)


def results(op="all_reduce"):
    return [
        CaseResult(
            Case(op, size, "float32", 2),
            {
                "ccl": BackendTimes(band(ours), ours, None),
                "gloo": BackendTimes(band(theirs), theirs, band(theirs / ours)),
            },
        )
        for size, (ours, theirs) in TIMES_US.items()
    ]


@pytest.fixture
def files(tmp_path):
    return write_plots(results(), ["ccl", "gloo"], tmp_path / "plot.svg")


def texts(path):
    return [element.text for element in ElementTree.parse(path).iter(f"{SVG}text")]


def test_one_file_per_theme(files):
    assert [path.name for path in files] == ["plot-light.svg", "plot-dark.svg"]


def test_labels(files):
    for path in files:
        labels = texts(path)
        for size in ("8 B", "64 KiB", "16 MiB", "64 MiB"):
            assert labels.count(size) == 1, labels
        for ratio in ("30\N{MULTIPLICATION SIGN}", "5.2\N{MULTIPLICATION SIGN}"):
            assert labels.count(ratio) == 1, labels
        assert {"ccl", "Gloo", "all_reduce, float32, 2 ranks", "100 µs", "10 ms"} <= set(labels)
        assert any(label.endswith("Gloo's time divided by ccl's") for label in labels)


def test_colors_of_the_themes(files):
    for path, theme in zip(files, THEMES, strict=True):
        text = path.read_text()
        for color in (theme.background, theme.text, *theme.backends[:2]):
            assert color in text, (path.name, color)


def test_each_backend_has_a_band_of_quartiles(files):
    for path in files:
        groups = ElementTree.parse(path).iter(f"{SVG}g")
        bands = [group for group in groups if "FillBetween" in group.get("id", "")]
        assert len(bands) == 2


def test_files_are_the_same_in_every_run(files, tmp_path):
    again = write_plots(results(), ["ccl", "gloo"], tmp_path / "again.svg")
    for first, second in zip(files, again, strict=True):
        assert first.read_bytes() == second.read_bytes()
        assert b"<dc:date>" not in first.read_bytes()


def test_several_operations_and_one_backend(tmp_path):
    both = results() + results("all_gather")
    write_plots(both, ["ccl"], tmp_path / "two.svg")
    labels = texts(tmp_path / "two-light.svg")
    assert {"all_reduce, float32, 2 ranks", "all_gather, float32, 2 ranks"} <= set(labels)
    assert labels.count("64 KiB") == 2
    assert not any("\N{MULTIPLICATION SIGN}" in label for label in labels)
