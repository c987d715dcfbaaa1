"""The charts of a report as data: values, labels and kind, without a plotting library.

A report makes its charts from the rows of its tables, so that a test reads them as data. `plots.py` draws them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

FORMATS = (".png", ".html", ".svg")  # of the files that `plots.py` writes


class Series(NamedTuple):
    """One value for each place of a chart, none below zero; None where there is no value."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Series over the same places, which are either names at even distances or moments in time."""

    title: str
    x_label: str
    y_label: str
    places: Sequence[str] | Sequence[datetime]  # from left to right
    series: Sequence[Series]
    kind: Literal["lines", "bars", "stacked"] = "lines"

    def __post_init__(self) -> None:
        for one in self.series:
            assert len(one.values) == len(self.places), f"{one.name} has {len(one.values)} values"


def short(value: float) -> str:
    """A number in few characters: `1.5k`, `20M`, `0.25`."""
    for unit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.4g}{suffix}"
    return f"{value:.4g}"
