import struct
import zlib
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import InvalidRequest
from goqueue.spark.pipelines import canvas, plots
from goqueue.spark.pipelines.plots import Chart, Series

SVG = "{http://www.w3.org/2000/svg}"
BACKGROUND, INK = 0, 1
FIRST_SERIES = 4

values = st.one_of(st.none(), st.floats(0, 1e15), st.just(float("nan")), st.just(float("inf")))


@st.composite
def charts(draw: st.DrawFn) -> Chart:
    count = draw(st.integers(0, 20))
    series = draw(st.lists(st.lists(values, min_size=count, max_size=count), max_size=5))
    return Chart(
        title=draw(st.text(max_size=20)),
        x_label="x",
        y_label="y",
        names=[draw(st.text(max_size=5)) for _ in range(count)],
        series=[Series(f"series {number}", row) for number, row in enumerate(series)],
        kind=draw(st.sampled_from(("lines", "bars"))),
    )


def bars(*heights: float | None, title: str = "bars") -> Chart:
    names = [str(number) for number in range(len(heights))]
    return Chart(title=title, x_label="x", y_label="y", names=names, series=[Series("one", heights)], kind="bars")


def chunks(png: bytes) -> dict[bytes, bytes]:
    """The parts of a PNG, each with a checksum that holds."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    found, position = {}, 8
    while position < len(png):
        (size,) = struct.unpack_from(">I", png, position)
        name, data = png[position + 4 : position + 8], png[position + 8 : position + 8 + size]
        assert struct.unpack_from(">I", png, position + 8 + size) == (zlib.crc32(name + data),)
        found[name] = data
        position += 12 + size
    return found


def pixels(png: bytes) -> list[bytes]:
    parts = chunks(png)
    width, height = struct.unpack_from(">II", parts[b"IHDR"])
    raw = zlib.decompress(parts[b"IDAT"])
    assert len(raw) == height * (width + 1)
    return [raw[row * (width + 1) + 1 : (row + 1) * (width + 1)] for row in range(height)]


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@given(st.lists(charts(), max_size=2))
def test_every_chart_can_be_drawn_and_is_well_formed(made: list[Chart]) -> None:
    drawing = ElementTree.fromstring(plots.as_svg(made))

    assert drawing.tag == f"{SVG}svg"
    for box in drawing.iter(f"{SVG}rect"):
        assert float(box.get("height", "")) >= 0


def test_a_png_has_all_its_pixels_in_colors_of_the_palette() -> None:
    png = plots.as_png([bars(1, 2), bars(3)])

    rows = pixels(png)
    assert (len(rows[0]), len(rows)) == (2 * plots.WIDTH, 2 * 2 * plots.HEIGHT)
    assert len(chunks(png)[b"PLTE"]) == 3 * len(canvas.PALETTE)
    assert max(map(max, rows)) < len(canvas.PALETTE)


def test_a_bar_is_as_tall_as_its_value() -> None:
    rows = pixels(plots.as_png([bars(1, 2, 4, 0, None)]))
    columns = [bytes(row[x] for row in rows).count(FIRST_SERIES) for x in range(len(rows[0]))]
    heights = sorted(set(columns))

    assert heights[0] == 0
    assert [round(height / heights[1], 1) for height in heights[1:]] == [1, 2, 4]


def test_few_bars_are_not_wide() -> None:
    rows = pixels(plots.as_png([bars(1)]))
    (width,) = {row.count(FIRST_SERIES) for row in rows} - {0}

    assert width == 2 * 70


def test_lines_are_drawn_where_there_are_values_and_not_over_gaps() -> None:
    series = [Series("a", [1, 2, None, 2, 1]), Series("b", [None, None, 1, None, None])]
    made = Chart(title="t", x_label="x", y_label="y", names=["v", "w", "x", "y", "z"], series=series)

    drawing = ElementTree.fromstring(plots.as_svg([made]))
    colored = [
        line.get("points", "").split()
        for line in drawing.iter(f"{SVG}polyline")
        if line.get("stroke") in canvas.PALETTE[FIRST_SERIES:]
    ]
    rows = pixels(plots.as_png([made]))

    (dot,) = (box for box in drawing.iter(f"{SVG}rect") if box.get("width") == "6.0")

    assert list(map(len, colored)) == [2, 2, 1]
    assert dot.get("fill") == canvas.PALETTE[FIRST_SERIES + 1]
    assert any(FIRST_SERIES in row for row in rows)
    assert any(FIRST_SERIES + 1 in row for row in rows)


def test_text_is_written_with_dots_and_what_the_font_lacks_is_a_question_mark() -> None:
    def ink(title: str) -> int:
        return sum(row.count(INK) for row in pixels(plots.as_png([bars(title=title)])))

    dots = 3 * 3
    assert ink("") == 0
    assert ink(" ") == 0
    assert ink("I") == dots * 11
    assert ink("é") == ink("?") > 0
    assert ink("\n") == ink("?")
    assert len({canvas.FONT[start : start + 5] for start in range(0, len(canvas.FONT), 5)}) == 95


def test_what_is_markup_elsewhere_is_text_in_a_picture() -> None:
    title = "<script>alert('1')</script> & \x00\x1b[31m ]]>"
    page = plots.as_html([bars(1, title=title)])

    assert "<script>" not in page
    assert texts(plots.as_svg([bars(1, title=title)]))[0] == "<script>alert('1')</script> & ??[31m ]]>"
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_series_are_named_if_there_are_several_and_as_far_as_there_is_room() -> None:
    names = [f"a series with a long name {number}" for number in range(9)]
    many = Chart(title="t", x_label="x", y_label="y", names=["n"], series=[Series(name, [1]) for name in names])

    assert "one" not in texts(plots.as_svg([bars(1)]))
    assert names[0] in texts(plots.as_svg([many]))
    assert names[8] not in texts(plots.as_svg([many]))


def test_names_of_places_are_thinned_out_where_there_are_many() -> None:
    places = [f"place {number}" for number in range(5_000)]
    many = Chart(title="t", x_label="x", y_label="y", names=places, series=[])

    shown = [text for text in texts(plots.as_svg([many])) if text.startswith("place")]

    assert shown[0] == "place 0"
    assert 3 <= len(shown) <= 12


@given(st.floats(1e-9, 1e18))
def test_ticks_reach_the_highest_value_in_few_even_steps(highest: float) -> None:
    ticks = plots._ticks(highest)

    assert ticks[0] == 0
    assert highest <= ticks[-1] <= 2 * highest
    assert 2 <= len(ticks) <= 7


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (999, "999"), (1500, "1.5k"), (2e7, "20M"), (3e9, "3G"), (1e-6, "1e-06"), (4e13, "40T")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert plots.short(value) == text


def test_the_name_of_the_file_says_what_is_written(tmp_path: Path) -> None:
    made = [bars(1, 2)]
    for name in ("plot.png", "plot.SVG", "plot.html"):
        plots.save(made, tmp_path / name)

    assert (tmp_path / "plot.png").read_bytes() == plots.as_png(made)
    assert (tmp_path / "plot.SVG").read_text() == plots.as_svg(made)
    assert (tmp_path / "plot.html").read_text().startswith("<!doctype html>")
    with pytest.raises(InvalidRequest, match=r"plot.gif"):
        plots.save(made, tmp_path / "plot.gif")
