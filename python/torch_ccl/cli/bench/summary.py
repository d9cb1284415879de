"""Median and quartiles of repeated measurements, and sizes and times as people write them."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """`low` and `high` are the quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Summary":
        import statistics  # here, because every command imports this module and few need it

        values = list(values)
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    @property
    def quartiles(self) -> list[float]:
        return [self.low, self.high]

    def scaled(self, factor: float) -> "Summary":
        return Summary(self.median * factor, self.low * factor, self.high * factor)

    def text(self, unit: str = "") -> str:
        """Three significant digits of the median, for example `1.52 ms (1.50-1.61)`."""
        digits = digits_after_point(self.median)
        median = f"{self.median:.{digits}f} {unit}".strip()
        return f"{median} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def digits_after_point(value: float) -> int:
    return 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0


def ratios(numerators: list[float], denominators: list[float]) -> list[float]:
    """Ratios of measurements taken alternately: the n-th of one by the n-th of the other."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


def time_unit(us: float) -> tuple[str, float]:
    """The unit in which people write a time of this length, and its factor to microseconds."""
    return ("us", 1.0) if us < 1e3 else ("ms", 1e-3) if us < 1e6 else ("s", 1e-6)


def time_text(us: float) -> str:
    """For example `6.12 us` or `1.52 ms`."""
    unit, factor = time_unit(us)
    return f"{us * factor:.{digits_after_point(us * factor)}f} {unit}"


def time_summary_text(us: Summary) -> str:
    """For example `1.52 ms (1.50-1.61)`."""
    unit, factor = time_unit(us.median)
    return us.scaled(factor).text(unit)


BINARY_UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}


def size_text(size_bytes: int) -> str:
    """For example `8 B`, `64 KiB`, `16 MiB`."""
    for name, unit in BINARY_UNITS.items():
        if size_bytes >= unit and size_bytes % unit == 0:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"


def parse_size(text: str) -> int:
    """Bytes of `8`, `64K`, `64KiB` or `16M`. Raises ValueError."""
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = {name[0]: unit for name, unit in BINARY_UNITS.items()}.get(number[-1:])
    return int(number[:-1]) * unit if unit else int(number)
