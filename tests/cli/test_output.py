"""Numbers, times and durations as people read them, and tables that lose nothing of them."""

import pytest
from rich.console import Console

from goqueue.cli.output import cut, facts, lasting, number, table, when
from goqueue.times import parse_duration, parse_time


@pytest.mark.parametrize(
    ("duration", "shown"),
    [
        ("0s", "0s"),
        ("999ns", "0s"),
        ("1500us", "1ms"),
        ("450us", "450us"),
        ("999.9ms", "999ms"),
        ("12.345s", "12.3s"),
        ("59m59.9s", "59m59s"),
        ("26h3m59s", "26h3m"),
    ],
)
def test_a_duration_has_no_digits_that_nobody_reads(duration: str, shown: str) -> None:
    assert lasting(parse_duration(duration)) == shown


def test_a_time_is_shown_so_that_it_can_be_given_back() -> None:
    time_ns = 1_704_067_200_250_000_001

    assert when(time_ns) == "2024-01-01T00:00:00Z"
    assert parse_time(when(time_ns), now_ns=0) == 1_704_067_200_000_000_000
    assert when(None) == "-"


def test_one_is_no_plural() -> None:
    assert [number(count, "message") for count in (0, 1, 2_000)] == ["0 messages", "1 message", "2,000 messages"]


def test_a_text_that_is_cut_says_so_and_fits() -> None:
    assert cut("12345", 5) == "12345"
    assert cut("123456", 5) == "1234…"


def printed(what: object, width: int) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def test_text_without_room_takes_several_lines_and_nothing_is_cut() -> None:
    made = table(("name", "count"), [("x" * 30, "1,000,000")], numbers=("count",))

    output = printed(made, 24)

    assert "…" not in output
    assert output.count("x") == 30
    assert "1,000,000" in output


def test_a_cell_is_never_taken_for_markup() -> None:
    assert "[red]x" in printed(table(("name",), [("[red]x",)]), 40)
    assert "[red]x" in printed(facts({"name": "[red]x"}), 40)
