import struct
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import isfinite
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.text import Text

from goqueue.errors import InvalidRequest
from goqueue.spark.pipelines import plots
from goqueue.spark.pipelines.charts import Chart, Series, short

SVG = "{http://www.w3.org/2000/svg}"
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
KINDS = ("lines", "bars", "stacked")

values = st.one_of(st.none(), st.floats(0, 1e15), st.just(float("nan")), st.just(float("inf")))
ascii_text = st.text(st.characters(max_codepoint=127), max_size=20)


@st.composite
def charts(draw: st.DrawFn) -> Chart:
    count = draw(st.integers(0, 20))
    series = draw(st.lists(st.lists(values, min_size=count, max_size=count), max_size=5))
    times = [NOON + timedelta(minutes=minute) for minute in range(count)]
    names = [draw(ascii_text) for _ in range(count)]
    return Chart(
        title=draw(ascii_text),
        x_label="x",
        y_label="y",
        places=draw(st.sampled_from((times, names))),
        series=[Series(draw(ascii_text), row) for row in series],
        kind=draw(st.sampled_from(KINDS)),
    )


def chart(*rows: list[float | None], kind: str = "bars", title: str = "orders", places: list | None = None) -> Chart:
    return Chart(
        title=title,
        x_label="partition",
        y_label="messages/s",
        places=places or [str(number) for number in range(len(rows[0]))],
        series=[Series(f"series {number}", row) for number, row in enumerate(rows)],
        kind=kind,
    )


def drawn(one: Chart) -> Axes:
    (axes,) = plots.figure([one]).axes
    return axes


def heights(axes: Axes) -> list[list[float]]:
    """The bars of each series."""
    return [[bar.get_height() for bar in container] for container in axes.containers]


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def is_apart(texts: list[Text]) -> bool:
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    return all(left.x1 < right.x0 for left, right in pairwise(boxes))


@settings(max_examples=10)
@given(st.lists(charts(), max_size=2))
def test_every_chart_can_be_drawn_and_is_well_formed(made: list[Chart]) -> None:
    drawing = ElementTree.fromstring(plots.as_svg(made))

    assert drawing.tag == f"{SVG}svg"


@pytest.mark.parametrize("kind", KINDS)
def test_a_chart_has_a_title_and_a_label_with_its_unit_at_each_axis(kind: str) -> None:
    axes = drawn(chart([1, 2, 3], kind=kind))

    assert axes.get_title(loc="left") == "orders"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("partition", "messages/s")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "2"]
    assert axes.get_ylim()[0] == 0


def test_a_png_holds_one_chart_below_the_other() -> None:
    png = plots.as_png([chart([1, 2]), chart([3])])

    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert png.endswith(b"IEND\xaeB`\x82")
    assert struct.unpack_from(">4sII", png, 12) == (b"IHDR", 1500, 2 * 540)
    assert 10_000 < len(png) < 200_000


def test_bars_are_as_tall_as_their_values_and_stand_side_by_side() -> None:
    axes = drawn(chart([1, 2, 4], [3, 0, None]))
    edges = [
        (bar.get_x(), bar.get_x() + bar.get_width()) for pair in zip(*axes.containers, strict=True) for bar in pair
    ]

    first, second = heights(axes)
    assert first == [1, 2, 4]
    assert second[:2] == [3, 0]
    assert all(left[1] < right[0] for left, right in pairwise(edges))
    assert [text.get_text() for text in axes.texts] == ["1", "2", "4", "3", "0", ""]


def test_stacked_bars_stand_on_each_other() -> None:
    axes = drawn(chart([1, None, 4], [3, 5, 6], kind="stacked"))

    assert heights(axes) == [[1, 0, 4], [3, 5, 6]]
    assert [bar.get_y() for bar in axes.containers[1]] == [1, 0, 4]
    assert axes.get_ylim()[1] > 10


def test_lines_have_gaps_where_there_are_no_values_and_a_dot_where_a_value_is_alone() -> None:
    values = [1.0, None, 3.0, float("inf"), *[2.0] * 50]
    (line,) = drawn(chart(values, kind="lines")).lines

    assert [isfinite(value) for value in line.get_ydata()] == [True, False, True, False, *[True] * 50]
    assert line.get_markevery() == [0, 2]


def test_moments_keep_their_distances_and_are_labeled_in_utc() -> None:
    moments = [NOON, NOON + timedelta(hours=1), NOON + timedelta(hours=5)]
    axes = drawn(chart([1, 2, 3], kind="stacked", places=moments))
    centers = [bar.get_x() + bar.get_width() / 2 for bar in axes.containers[0]]
    axes.figure.draw_without_rendering()

    assert [round((center - centers[0]) * 24, 3) for center in centers] == [0, 1, 5]
    assert {"12:00", "14:00", "16:00"} <= {label.get_text() for label in axes.get_xticklabels()}
    assert axes.xaxis.get_offset_text().get_text() == "2026-Nov-16"


def test_one_moment_is_a_bar_with_room_around_it() -> None:
    axes = drawn(chart([3], kind="stacked", places=[NOON]))
    (bar,) = axes.patches

    left, right = axes.get_xlim()
    assert left < bar.get_x() < bar.get_x() + bar.get_width() < right
    assert bar.get_width() < (right - left) / 2


def test_series_are_named_beside_the_chart_if_there_are_several_and_as_far_as_there_is_room() -> None:
    several, many = drawn(chart([1], [2])), drawn(chart(*[[1]] * 20))
    several.figure.draw_without_rendering()
    legend = several.get_legend()

    assert drawn(chart([1])).get_legend() is None
    assert [text.get_text() for text in legend.get_texts()] == ["series 0", "series 1"]
    assert several.get_window_extent().x1 <= legend.get_window_extent().x0
    assert legend.get_window_extent().x1 <= several.figure.bbox.x1
    assert len(many.get_legend().get_texts()) == plots.LEGEND_MAX
    assert many.get_legend().get_title().get_text() == "12 of 20"


@pytest.mark.parametrize("count", [3, 30, 5_000])
def test_names_of_places_never_overlap(count: int) -> None:
    axes = drawn(chart([1] * count, kind="lines", places=[f"place {number}" for number in range(count)]))
    axes.figure.draw_without_rendering()
    labels = axes.get_xticklabels()

    assert labels[0].get_text() == "place 0"
    assert len(labels) >= min(count, 8)
    assert is_apart(labels)


@pytest.mark.parametrize("places", [[], ["0", "1"]], ids=["no place", "no value"])
def test_a_chart_without_values_says_so(places: list[str]) -> None:
    empty = Chart(title="t", x_label="x", y_label="y", places=places, series=[Series("a", [None for _ in places])])

    assert [text.get_text() for text in drawn(empty).texts] == ["no data"]


def test_more_charts_than_a_picture_can_hold_are_counted() -> None:
    figure = plots.figure([Chart(title="t", x_label="x", y_label="y", places=[], series=[])] * (plots.CHARTS_MAX + 2))

    assert len(figure.axes) == plots.CHARTS_MAX
    assert figure.get_supxlabel() == "2 more charts are not drawn"
    assert figure.get_figheight() * figure.dpi < 2**16


def test_what_is_markup_elsewhere_is_text_in_a_picture() -> None:
    title = "<script>alert('1')</script> & $x^2$ \x00\x1b[31m ]]>"
    shown = "<script>alert('1')</script> & $x^2$ ??[31m ]]>"
    made = [chart([1], title=title)]

    assert shown in texts(plots.as_svg(made))
    assert "<script>" not in plots.as_html(made)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (999, "999"), (1500, "1.5k"), (2e7, "20M"), (3e9, "3G"), (1e-6, "1e-06"), (4e13, "40T")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_the_name_of_the_file_says_what_is_written(tmp_path: Path) -> None:
    made = [chart([1, 2])]
    for name in ("plot.png", "plot.SVG", "plot.html"):
        plots.save(made, tmp_path / name)

    assert (tmp_path / "plot.png").read_bytes() == plots.as_png(made)
    assert (tmp_path / "plot.SVG").read_text() == plots.as_svg(made)
    page = (tmp_path / "plot.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == 1
    with pytest.raises(InvalidRequest, match=r"plot.gif"):
        plots.save(made, tmp_path / "plot.gif")
