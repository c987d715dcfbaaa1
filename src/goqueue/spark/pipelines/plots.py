"""Charts as files: matplotlib draws them one below the other, as PNG, SVG, or a page of HTML that holds the SVG.

A figure is made without pyplot, hence without a display, a global figure or a setting of the user's own matplotlib.
A value that is None or not finite is a gap. Text is never read as TeX.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from io import BytesIO
from itertools import pairwise
from math import ceil, isfinite, nan
from pathlib import Path
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from goqueue.errors import InvalidRequest
from goqueue.spark.pipelines.charts import FORMATS, Chart, Series, short

WIDTH_IN, HEIGHT_IN = 10.0, 3.6  # of a chart
DPI = 150
CHARTS_MAX = 60  # matplotlib limits the height of an image to 65,535 pixels
LEGEND_MAX = 12  # a longer legend is taller than a chart
MARKED_MAX = 40  # lines with at most this many points get a dot at each
LABELED_MAX = 16  # charts with at most this many bars show the value of each
LABEL_CHARACTERS = 100  # about as many fit below a chart

INK, GREY, PALE = "#1f2933", "#616e7c", "#e4e7eb"
COLORS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")
HOUR = 1 / 24  # matplotlib counts time in days
BAR_MAX = 0.5  # of the distance between two places, so that two bars alone do not fill the chart

_SETTINGS: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that a picture looks the same on every machine
    "font.size": 10.0,
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "svg.fonttype": "none",  # text stays text, which can be found and copied
    "svg.hashsalt": "goqueue",  # the same charts give the same bytes
}


def save(charts: Sequence[Chart], path: Path) -> None:
    """Write the charts in the format that the name of the file asks for."""
    match path.suffix.lower():
        case ".png":
            path.write_bytes(as_png(charts))
        case ".svg":
            path.write_text(as_svg(charts), encoding="utf-8")
        case ".html":
            path.write_text(as_html(charts), encoding="utf-8")
        case _:
            raise InvalidRequest(f"invalid plot {path.name!r}: must end in {', '.join(FORMATS)}", path="plot")


def as_png(charts: Sequence[Chart]) -> bytes:
    """The charts as one picture."""
    return _rendered(charts, "png", {"Software": None})


def as_svg(charts: Sequence[Chart]) -> str:
    """The charts as one drawing."""
    return _rendered(charts, "svg", {"Creator": None, "Date": None}).decode()


def as_html(charts: Sequence[Chart]) -> str:
    """The charts as a page without external resources."""
    title = escape(_printable(charts[0].title if charts else ""))
    svg = as_svg(charts)
    drawing = svg[svg.index("<svg") :]  # HTML does not allow the XML declarations
    head = f'<meta charset="utf-8"><title>{title}</title><style>svg {{ max-width: 100%; height: auto }}</style>'
    return f'<!doctype html>\n<html lang="en">{head}\n{drawing}</html>\n'


def figure(charts: Sequence[Chart]) -> Figure:
    """The charts one below the other, at most `CHARTS_MAX`."""
    drawn = charts[:CHARTS_MAX]
    count = max(1, len(drawn))
    with rc_context(_SETTINGS):
        made = Figure(
            figsize=(WIDTH_IN, HEIGHT_IN * count), dpi=DPI, layout=ConstrainedLayoutEngine(h_pad=0.15, w_pad=0.15)
        )
        for index, chart in enumerate(drawn):
            _draw(chart, made.add_subplot(count, 1, index + 1))
        made.align_ylabels()
        if len(charts) > len(drawn):
            made.supxlabel(f"{len(charts) - len(drawn)} more charts are not drawn", color=GREY)
    return made


def _rendered(charts: Sequence[Chart], file_format: str, metadata: dict[str, Any]) -> bytes:
    file = BytesIO()
    made = figure(charts)
    with rc_context(_SETTINGS):  # `svg.fonttype` and others are read when the file is written
        made.savefig(file, format=file_format, metadata=metadata)
    return file.getvalue()


# --- one chart ---------------------------------------------------------------------------------


def _draw(chart: Chart, axes: Axes) -> None:
    axes.set_title(_printable(chart.title), loc="left", fontweight="bold", fontsize=12, pad=12)
    axes.set_xlabel(chart.x_label, labelpad=8)
    axes.set_ylabel(chart.y_label, labelpad=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, pad=6)
    axes.grid(axis="y", color=PALE)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    if not any(isfinite(value) for one in chart.series for value in _numbers(one)):
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", color=GREY)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    positions = _positions(chart)
    match chart.kind:
        case "lines":
            shown = list(_lines(chart, axes, positions))
        case "bars":
            shown = list(_bars(chart, axes, positions))
        case "stacked":
            shown = list(_stacks(chart, axes, positions))
    axes.set_ylim(bottom=0, top=None if axes.get_ylim()[1] > 0 else 1)
    _label_places(chart, axes, positions)
    if len(chart.series) > 1:
        _explain(chart, axes, shown)


def _lines(chart: Chart, axes: Axes, positions: Sequence[float]) -> Iterator[Any]:
    for number, one in enumerate(chart.series):
        values = list(_numbers(one))
        # A value between two gaps makes no line: without a dot it would be invisible.
        marked = [index for index in range(len(values)) if len(values) <= MARKED_MAX or _is_alone(values, index)]
        (line,) = axes.plot(
            positions, values, color=_color(number), linewidth=1.8, marker="o", markersize=4, markevery=marked
        )
        yield line


def _bars(chart: Chart, axes: Axes, positions: Sequence[float]) -> Iterator[Any]:
    """Bars side by side at each place."""
    width = _room(chart, positions) * min(BAR_MAX, 0.8 / len(chart.series))
    for number, one in enumerate(chart.series):
        shift = (number - (len(chart.series) - 1) / 2) * width
        bars = axes.bar(
            [position + shift for position in positions], list(_numbers(one)), width * 0.94, color=_color(number)
        )
        if len(positions) * len(chart.series) <= LABELED_MAX:
            labels = ["" if not isfinite(value) else short(value) for value in _numbers(one)]
            axes.bar_label(bars, labels, padding=3, fontsize=8, color=GREY)
        yield bars


def _stacks(chart: Chart, axes: Axes, positions: Sequence[float]) -> Iterator[Any]:
    """Bars on top of each other, which show their sum, too."""
    floor = [0.0] * len(positions)
    width = _room(chart, positions) * (0.8 if len(positions) > 4 else BAR_MAX)
    for number, one in enumerate(chart.series):
        values = [value if isfinite(value) else 0.0 for value in _numbers(one)]
        yield axes.bar(positions, values, width, bottom=floor, color=_color(number))
        floor = [below + value for below, value in zip(floor, values, strict=True)]


def _explain(chart: Chart, axes: Axes, shown: Sequence[Any]) -> None:
    """Draw the legend beside the chart, where it covers nothing."""
    names = [_printable(one.name) for one in chart.series]
    legend = axes.legend(
        shown[:LEGEND_MAX], names[:LEGEND_MAX], loc="upper left", bbox_to_anchor=(1, 1.03), frameon=False
    )
    if len(names) > LEGEND_MAX:
        legend.set_title(f"{LEGEND_MAX} of {len(names)}")


# --- places ------------------------------------------------------------------------------------


def _positions(chart: Chart) -> list[float]:
    """The x positions: times in days, names at distance 1."""
    return [
        float(date2num(place)) if isinstance(place, datetime) else float(index)
        for index, place in enumerate(chart.places)
    ]


def _label_places(chart: Chart, axes: Axes, positions: Sequence[float]) -> None:
    if isinstance(chart.places[0], datetime):
        locator = AutoDateLocator(minticks=3, maxticks=9)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        if len(positions) == 1:  # a range without length has no ticks
            axes.set_xlim(positions[0] - HOUR, positions[0] + HOUR)
        return
    names = [_printable(str(place)) for place in chart.places]
    every = ceil(len(names) * (max(map(len, names)) + 2) / LABEL_CHARACTERS)
    axes.set_xticks(positions[::every], names[::every])
    axes.set_xlim(positions[0] - 0.6, positions[-1] + 0.6)


def _room(chart: Chart, positions: Sequence[float]) -> float:
    """The distance between the two places that are nearest to each other."""
    alone = HOUR if isinstance(chart.places[0], datetime) else 1.0
    return min((right - left for left, right in pairwise(positions)), default=alone)


# --- values ------------------------------------------------------------------------------------


def _numbers(series: Series) -> Iterator[float]:
    """The values, with NaN for gaps."""
    return (nan if value is None or not isfinite(value) else float(value) for value in series.values)


def _is_alone(values: Sequence[float], index: int) -> bool:
    around = (*values[max(0, index - 1) : index], *values[index + 1 : index + 2])
    return not any(map(isfinite, around))


def _color(number: int) -> str:
    return COLORS[number % len(COLORS)]


def _printable(text: str) -> str:
    """The text without control characters, which XML cannot hold."""
    return "".join(character if character.isprintable() else "?" for character in text)
