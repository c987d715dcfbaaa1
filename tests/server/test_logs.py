"""The lines that a server writes: readable for people, parsable for machines, and never a flood."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from goqueue.server.logs import LINES_PER_PLACE_MAX, ServerLogHandler, configure
from goqueue.testing import ManualClock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger of its own, whose handler a test sets."""
    logger = logging.Logger("goqueue.test")
    yield logger
    for handler in logger.handlers:
        handler.close()


def attach(
    logger: logging.Logger, clock: ManualClock, *, text: bool = False, colours: bool = False
) -> tuple[io.StringIO, ServerLogHandler]:
    stream = io.StringIO()
    handler = ServerLogHandler(stream, clock, text=text, colors=colours)
    logger.addHandler(handler)
    return stream, handler


def messages(stream: io.StringIO) -> list[str]:
    return [json.loads(line)["message"] for line in stream.getvalue().splitlines()]


def test_a_line_is_a_json_object_with_its_facts_as_fields(logger: logging.Logger, clock: ManualClock) -> None:
    stream, _ = attach(logger, clock)

    logger.warning("disk is %s", "full", extra={"free_bytes": 0, "path": "/data", "since": None})

    line = json.loads(stream.getvalue())
    assert line.pop("ts")[10] == "T"
    assert line == {
        "level": "warning",
        "logger": "goqueue.test",
        "message": "disk is full",
        "free_bytes": 0,
        "path": "/data",
        "since": None,
    }


def test_times_are_rfc_3339_in_utc(logger: logging.Logger, clock: ManualClock) -> None:
    stream, handler = attach(logger, clock)
    record = logger.makeRecord("x", logging.INFO, "file.py", 1, "hello", (), None)
    record.created = 1_704_067_200.25

    handler.handle(record)

    assert json.loads(stream.getvalue())["ts"] == "2024-01-01T00:00:00.250Z"


def test_facts_cannot_pose_as_what_the_line_itself_says(logger: logging.Logger, clock: ManualClock) -> None:
    stream, _ = attach(logger, clock)

    logger.info("true", extra={"level": "critical", "ts": "never", "logger": "someone"})

    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["message"]) == ("info", "goqueue.test", "true")
    assert line["ts"] != "never"


def test_facts_of_any_type_and_text_of_any_bytes_fit_on_a_line(logger: logging.Logger, clock: ManualClock) -> None:
    stream, _ = attach(logger, clock)

    logger.info("bad \udcff\nname", extra={"kind": ValueError, "names": {1, 2}, "path": "\udcff", "odd": float("nan")})

    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["message"] == "bad \\udcff\nname"
    assert json.loads(line)["path"] == "\\udcff"


@pytest.mark.parametrize("text", [True, False])
def test_an_exception_brings_its_traceback(logger: logging.Logger, clock: ManualClock, text: bool) -> None:
    stream, _ = attach(logger, clock, text=text)

    try:
        raise RuntimeError("a\nb")
    except RuntimeError:
        logger.exception("it failed")

    output = stream.getvalue() if text else json.loads(stream.getvalue())["traceback"]
    assert "Traceback (most recent call last)" in output
    assert "RuntimeError: a" in output


def test_text_is_one_line_whatever_a_client_wrote(logger: logging.Logger, clock: ManualClock) -> None:
    stream, _ = attach(logger, clock, text=True)

    logger.info("from %s", "x\nERROR forged \x1b[31m", extra={"name_given": "\r\t\x9b"})

    (line,) = stream.getvalue().splitlines()
    assert line.endswith("info     from x\\nERROR forged \\x1b[31m name_given=\\x0d\\t\\x9b")


def test_colours_are_for_terminals(clock: ManualClock) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.raiseExceptions
    shown = {}
    try:
        for name, stream, format, no_color in (
            ("terminal", Terminal(), "auto", False),
            ("no colour", Terminal(), "auto", True),
            ("json on a terminal", Terminal(), "json", False),
            ("file", io.StringIO(), "auto", False),
            ("text in a file", io.StringIO(), "text", False),
        ):
            root.handlers = []
            configure(stream, clock, level="warning", format=format, no_color=no_color)
            logging.getLogger("goqueue.x").warning("hello")
            logging.getLogger("goqueue.x").info("not shown")
            (shown[name],) = stream.getvalue().splitlines()
    finally:
        root.handlers, level, logging.raiseExceptions = before
        root.setLevel(level)

    assert "\x1b[33mwarning" in shown["terminal"]
    assert shown["no colour"].endswith("warning  hello")
    assert "\x1b" not in shown["no colour"]
    assert json.loads(shown["json on a terminal"])["message"] == "hello"
    assert json.loads(shown["file"])["message"] == "hello"
    assert shown["text in a file"].endswith("warning  hello")


def test_the_same_complaint_is_written_once_and_then_counted(logger: logging.Logger, clock: ManualClock) -> None:
    stream, handler = attach(logger, clock)

    for _ in range(1_000):
        logger.warning("bad frame", extra={"peer": "10.0.0.1"})
    assert messages(stream) == ["bad frame"]

    clock.advance(10)
    handler.sum_up()
    assert messages(stream) == ["bad frame", "bad frame (999 more like this)"]

    clock.advance(10)
    handler.sum_up()
    assert len(messages(stream)) == 2


def test_after_a_while_the_complaint_is_written_again_behind_the_count(
    logger: logging.Logger, clock: ManualClock
) -> None:
    stream, _ = attach(logger, clock)

    for _ in range(3):
        for _ in range(5):
            logger.warning("bad frame")
        clock.advance(10)

    again = ["bad frame (4 more like this)", "bad frame"]
    assert messages(stream) == ["bad frame", *again, *again]


def test_one_place_cannot_fill_the_disk_with_complaints_that_differ(logger: logging.Logger, clock: ManualClock) -> None:
    stream, handler = attach(logger, clock)

    for number in range(10_000):
        logger.warning("bad frame from port %d", number)
    logger.warning("something else")
    handler.sum_up(everything=True)

    assert len(messages(stream)) == LINES_PER_PLACE_MAX + 2
    assert messages(stream)[-2:] == ["something else", "bad frame from port 9999 (9,980 more like this)"]


def test_facts_make_complaints_differ(logger: logging.Logger, clock: ManualClock) -> None:
    stream, _ = attach(logger, clock)

    for log in ("orders-0", "orders-1", "orders-0"):
        logger.error("damaged", extra={"log": log})

    assert [json.loads(line)["log"] for line in stream.getvalue().splitlines()] == ["orders-0", "orders-1"]


def test_what_was_held_back_is_counted_when_the_log_is_closed(logger: logging.Logger, clock: ManualClock) -> None:
    stream, handler = attach(logger, clock)
    for _ in range(3):
        logger.warning("again")

    handler.close()

    assert messages(stream) == ["again", "again (2 more like this)"]


def test_whoever_debugs_sees_everything(logger: logging.Logger, clock: ManualClock) -> None:
    stream, _ = attach(logger, clock)

    for _ in range(100):
        logger.debug("step")

    assert len(messages(stream)) == 100


def test_a_sentence_that_does_not_fit_its_arguments_stops_nobody(
    logger: logging.Logger, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    stream, _ = attach(logger, clock)

    sentence = "%d and %d"
    logger.info(sentence, 1)
    logger.info("goes on")

    assert messages(stream) == ["goes on"]
    assert "Logging error" in capsys.readouterr().err
