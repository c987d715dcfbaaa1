"""Charts as files, without a library: lines or bars over named places, as SVG, as a page of HTML, or as PNG.

A chart is laid out once, in units of its own, and drawn on one of two canvases; so all formats show the same picture.
HTML holds the SVG whole and needs nothing else. A value that is None, or no finite number, is a gap.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import ceil, floor, isfinite, log10
from pathlib import Path
from typing import Literal, NamedTuple

from goqueue.errors import InvalidRequest
from goqueue.spark.pipelines.canvas import FIRST_OF_SERIES, GREY, INK, PALE, PALETTE, Canvas, Pixels, Vectors

FORMATS = (".png", ".html", ".svg")
WIDTH, HEIGHT = 960, 400  # of a chart
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 30, 60, 60
_TICKS = 5
_BAR_MAX = 70
_DOT = 6
_VISIBLE = 1e-12  # less is nothing
_CHARACTER = 9  # about as wide in both fonts


class Series(NamedTuple):
    """A value for each place of a chart, none below zero."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What is to be seen."""

    title: str
    x_label: str
    y_label: str
    names: Sequence[str]  # of the places, from left to right
    series: Sequence[Series]
    kind: Literal["lines", "bars"] = "lines"

    def __post_init__(self) -> None:
        for one in self.series:
            assert len(one.values) == len(self.names), f"{one.name} has {len(one.values)} values"


def save(charts: Sequence[Chart], path: Path) -> None:
    """Write the charts, one below the other, in the format that the name of the file asks for."""
    match path.suffix.lower():
        case ".png":
            path.write_bytes(as_png(charts))
        case ".svg":
            path.write_text(as_svg(charts), encoding="utf-8")
        case ".html":
            path.write_text(as_html(charts), encoding="utf-8")
        case _:
            raise InvalidRequest(f"invalid plot {path.name!r}: must end in {', '.join(FORMATS)}", path="plot")


def as_svg(charts: Sequence[Chart]) -> str:
    """The charts as one drawing."""
    canvas = Vectors(WIDTH, len(charts) * HEIGHT)
    _draw_all(charts, canvas)
    return canvas.text()


def as_html(charts: Sequence[Chart]) -> str:
    """The charts as a page that needs nothing else."""
    title = escape(charts[0].title if charts else "")
    return f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n{as_svg(charts)}\n</html>\n'


def as_png(charts: Sequence[Chart]) -> bytes:
    """The charts as one picture."""
    canvas = Pixels(WIDTH, max(1, len(charts)) * HEIGHT)
    _draw_all(charts, canvas)
    return canvas.png()


# --- layout ------------------------------------------------------------------------------------


def _draw_all(charts: Sequence[Chart], canvas: Canvas) -> None:
    for index, chart in enumerate(charts):
        _draw(chart, canvas, index * HEIGHT)


def _draw(chart: Chart, canvas: Canvas, top: float) -> None:
    width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    bottom = top + _TOP + height
    ticks = _ticks(max((value for one in chart.series for _, value in _present(one.values)), default=0.0))
    canvas.write(_LEFT, top + 22, chart.title, "start", INK)
    canvas.write(_LEFT, top + _TOP - 10, chart.y_label, "start", GREY)
    canvas.write(_LEFT + width / 2, bottom + 42, chart.x_label, "middle", GREY)
    for tick in ticks:
        y = bottom - height * tick / ticks[-1]
        canvas.line([(_LEFT, y), (_LEFT + width, y)], PALE if tick else GREY, 1)
        canvas.write(_LEFT - 8, y + 4, short(tick), "end", GREY)
    step = width / max(1, len(chart.names))
    widest = _CHARACTER * max(map(len, chart.names), default=0) + 12
    every = max(1, ceil(widest / step))
    for index, name in enumerate(chart.names):
        if index % every == 0:
            canvas.write(_LEFT + (index + 0.5) * step, bottom + 20, name, "middle", GREY)
    _explain(chart, canvas, top + _TOP - 10)
    for number, one in enumerate(chart.series):
        color = _color(number)
        if chart.kind == "bars":
            bar = min(_BAR_MAX, 0.8 * step / len(chart.series))
            for index, value in _present(one.values):
                tall = height * value / ticks[-1]
                middle = _LEFT + (index + 0.5) * step
                canvas.box(middle + (number - len(chart.series) / 2) * bar, bottom - tall, bar, tall, color)
        else:
            for run in _runs(one.values):
                places = [(_LEFT + (index + 0.5) * step, bottom - height * value / ticks[-1]) for index, value in run]
                canvas.line(places, color, 2)
                if len(places) == 1:  # which is no line
                    canvas.box(places[0][0] - _DOT / 2, places[0][1] - _DOT / 2, _DOT, _DOT, color)


def _explain(chart: Chart, canvas: Canvas, y: float) -> None:
    """Say which color is which, of as many series as there is room for."""
    x = WIDTH / 3
    for number, one in enumerate(chart.series if len(chart.series) > 1 else ()):
        width = 18 + _CHARACTER * len(one.name)
        if x + width > WIDTH - _RIGHT:
            return
        canvas.box(x, y - 11, 12, 12, _color(number))
        canvas.write(x + 18, y, one.name, "start", INK)
        x += width + 16


def _color(number: int) -> int:
    return FIRST_OF_SERIES + number % (len(PALETTE) - FIRST_OF_SERIES)


def _present(values: Sequence[float | None]) -> Iterator[tuple[int, float]]:
    return ((index, value) for index, value in enumerate(values) if value is not None and isfinite(value))


def _runs(values: Sequence[float | None]) -> Iterator[list[tuple[int, float]]]:
    """The values without a gap between them."""
    for _, run in groupby(enumerate(_present(values)), key=lambda one: one[0] - one[1][0]):
        yield [place for _, place in run]


def _ticks(highest: float) -> list[float]:
    """From 0 to the highest value or a little above, in steps that people count in."""
    if highest < _VISIBLE:
        return [0.0, 1.0]
    exact = highest / _TICKS
    unit = 10.0 ** floor(log10(exact))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10, 20) if factor * unit >= exact)
    count = 1
    while count * step < highest:
        count += 1
    return [index * step for index in range(count + 1)]


def short(value: float) -> str:
    """A number in few characters: `1.5k`, `20M`, `0.25`."""
    for unit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.4g}{suffix}"
    return f"{value:.4g}"
