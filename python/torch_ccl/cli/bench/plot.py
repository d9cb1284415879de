"""`torch-ccl bench --plot NAME.svg`: time by size, as NAME-light.svg and NAME-dark.svg.

Each panel shows one operation. A line is the median of a backend, the band around it spans the
quartiles. The number between two points is the ratio of the second backend's time to the first's.
"""

import math
from dataclasses import dataclass
from itertools import cycle, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ccl.cli.bench.collectives import BackendTimes, CaseResult
from torch_ccl.cli.bench.summary import size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DISPLAY_NAMES = {"gloo": "Gloo"}
WIDTH_IN, HEIGHT_IN = 8.4, 4.4  # of one panel
TIME_TICKS_US = {
    1: "1 µs",
    10: "10 µs",
    100: "100 µs",
    1e3: "1 ms",
    1e4: "10 ms",
    1e5: "100 ms",
    1e6: "1 s",
    1e7: "10 s",
}
TIMES = "\N{MULTIPLICATION SIGN}"
MIN_GAP = 2.5  # a ratio below this leaves no room for its label between the lines


@dataclass(frozen=True)
class Theme:
    name: str
    text: str
    muted: str
    grid: str
    background: str
    backends: tuple[str, ...]  # colors, in the order of the backends


THEMES = (
    Theme(
        "light",
        text="#1f2328",
        muted="#59636e",
        grid="#d8dee4",
        background="#ffffff",
        backends=("#0969da", "#8c5a1e", "#1a7f37", "#8250df"),
    ),
    Theme(
        "dark",
        text="#e6edf3",
        muted="#9198a1",
        grid="#30363d",
        background="#0d1117",
        backends=("#58a6ff", "#e3a04f", "#3fb950", "#bc8cff"),
    ),
)


def theme_file(path: Path, theme: Theme) -> Path:
    """NAME.svg -> NAME-light.svg"""
    return path.with_name(f"{path.stem}-{theme.name}{path.suffix or '.svg'}")


def style(theme: Theme) -> dict[Any, Any]:
    """Settings of matplotlib. Text stays text, ids are the same in every run."""
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "torch-ccl",
        "font.family": "sans-serif",
        "font.sans-serif": ["Helvetica Neue", "Helvetica", "Arial", "DejaVu Sans"],
        "font.size": 11,
        "text.color": theme.text,
        "axes.labelcolor": theme.muted,
        "axes.edgecolor": theme.grid,
        "figure.facecolor": theme.background,
        "figure.constrained_layout.h_pad": 0.12,
        "figure.constrained_layout.w_pad": 0.12,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 13,
        "axes.titleweight": "bold",
        "axes.titlepad": 28,
        "axes.axisbelow": True,
        "grid.color": theme.grid,
        "grid.linewidth": 0.8,
        "xtick.color": theme.grid,
        "ytick.color": theme.grid,
        "xtick.labelcolor": theme.muted,
        "ytick.labelcolor": theme.muted,
        "ytick.major.size": 0,
    }


def display_name(backend: str) -> str:
    return DISPLAY_NAMES.get(backend, backend)


def draw_backend(axes: "Axes", results: list[CaseResult], backend: str, color: str) -> None:
    """Draws the line, the band of the quartiles, and the backend's name at the last point."""
    positions = range(len(results))
    times = [result.times[backend].us for result in results]
    lows, highs = [us.low for us in times], [us.high for us in times]
    axes.fill_between(positions, lows, highs, color=color, alpha=0.22, linewidth=0)
    axes.plot(positions, [us.median for us in times], color=color, marker="o", markersize=5, lw=2)
    axes.annotate(
        display_name(backend),
        (positions[-1], times[-1].median),
        xytext=(12, 0),
        textcoords="offset points",
        va="center",
        color=color,
        fontsize=12,
        fontweight="bold",
    )


def ratio_text(ratio: float) -> str:
    return f"{ratio:.0f}{TIMES}" if ratio >= 10 else f"{ratio:.1f}{TIMES}"


def draw_ratio(axes: "Axes", position: int, times: list[BackendTimes], theme: Theme) -> None:
    """Writes the ratio between the points of the first two backends, or above them if close."""
    first, second = times[:2]
    assert second.ratio is not None
    low, high = sorted((first.us.median, second.us.median))
    between = high / low >= MIN_GAP
    if between:
        axes.plot([position] * 2, [low, high], color=theme.muted, lw=1, ls=(0, (1, 2)), zorder=1)
    axes.annotate(
        ratio_text(second.ratio.median),
        (position, (low * high) ** 0.5 if between else high),
        xytext=(0, 0 if between else 14),
        textcoords="offset points",
        ha="center",
        va="center",
        fontsize=12,
        fontweight="bold",
        bbox={"boxstyle": "round,pad=0.2", "fc": theme.background, "ec": "none"},
    )


def label_axes(axes: "Axes", results: list[CaseResult]) -> None:
    """Every size has the same distance to the next, so that every label can be read."""
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_xticks(range(len(results)), [size_text(result.case.bytes) for result in results])
    low, high = axes.get_ylim()
    ticks = {us: text for us, text in TIME_TICKS_US.items() if low <= us <= high}
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.grid(axis="y")


def caption(result: CaseResult, backends: list[str]) -> str:
    """Explains lines, bands, and the ratio of one result."""
    text = "time per call, logarithmic; lines: medians, bands: quartiles"
    ratio = result.times[backends[1]].ratio if len(backends) > 1 else None
    if ratio is None:
        return text
    first, second = map(display_name, backends[:2])
    return f"{text}; {ratio_text(ratio.median)}: {second}'s time divided by {first}'s"


def draw_panel(axes: "Axes", results: list[CaseResult], backends: list[str], theme: Theme) -> None:
    results = sorted(results, key=lambda result: result.case.bytes)
    for backend, color in zip(backends, cycle(theme.backends), strict=False):
        draw_backend(axes, results, backend, color)
    label_axes(axes, results)
    if len(backends) > 1:
        for position, result in enumerate(results):
            draw_ratio(axes, position, list(result.times.values()), theme)
    axes.set_title(results[0].case.title)
    axes.annotate(
        caption(results[0], backends),
        (0, 1),
        xytext=(0, 8),
        xycoords="axes fraction",
        textcoords="offset points",
        color=theme.muted,
        fontsize=10,
    )


def draw(results: list[CaseResult], backends: list[str], theme: Theme) -> "Figure":
    """Operations without a size (barrier) are left out."""
    from matplotlib.figure import Figure

    sized = [result for result in results if result.case.bytes]
    panels = [list(group) for _, group in groupby(sized, lambda result: result.case.title)]
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(WIDTH_IN * columns, HEIGHT_IN * rows), layout="constrained")
    for index, panel in enumerate(panels):
        draw_panel(figure.add_subplot(rows, columns, index + 1), panel, backends, theme)
    return figure


def write_plots(results: list[CaseResult], backends: list[str], path: Path) -> list[Path]:
    import matplotlib

    files = []
    for theme in THEMES:
        with matplotlib.rc_context(style(theme)):
            file = theme_file(path, theme)
            figure = draw(results, backends, theme)
            figure.savefig(file, metadata={"Date": None})
            files.append(file)
    return files
