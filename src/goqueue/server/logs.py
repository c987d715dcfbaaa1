"""What the server writes about itself: lines for people on a terminal, JSON objects for machines elsewhere.

Code logs with the standard library: `logging.getLogger(__name__)`, a constant sentence, and the facts as `extra`. In
text they stand behind the sentence as name=value, in JSON as fields of their own. Text that came from outside may
hold anything; it cannot begin a new line or colour the terminal.

A complaint that repeats itself must not fill the disk, whoever causes it. Within ten seconds the same line is written
once, and one place in the code writes at most twenty lines; what is held back is counted, and the count
is written when the time is over.
"""

import logging
import traceback
from datetime import UTC, datetime
from typing import Final, NamedTuple, TextIO

import msgspec

from goqueue.clock import SECOND, Clock

WINDOW_NS: Final = 10 * SECOND
LINES_PER_PLACE_MAX: Final = 20
_ORDINARY: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_COLOURS: Final = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
_CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {0x0A: "\\n", 0x09: "\\t"}


def facts(record: logging.LogRecord) -> dict[str, object]:
    """What the caller handed over as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _ORDINARY}


class JsonFormatter(logging.Formatter):
    """One object per line: ts, level, logger, message, the facts, and for exceptions the traceback."""

    def __init__(self) -> None:
        super().__init__()
        self._encode = msgspec.json.Encoder(enc_hook=str).encode

    def format(self, record: logging.LogRecord) -> str:
        own = {
            "ts": _moment(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _encodable(record.getMessage()),
        }
        line = own | {name: _encodable(value) for name, value in facts(record).items() if name not in own}
        if record.exc_info and record.exc_info[0]:
            line["traceback"] = _encodable("".join(traceback.format_exception(*record.exc_info)))
        return self._encode(line).decode()


class TextFormatter(logging.Formatter):
    """One line for people, a traceback below it."""

    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        time = f"{_moment(record):%H:%M:%S.%f}"[:-3]
        level = f"{record.levelname.lower():<8}"
        behind = "".join(f" {name}={value}" for name, value in facts(record).items())
        if self._colours:
            level = f"\x1b[{_COLOURS.get(record.levelname, '0')}m{level}\x1b[0m"
            behind = f"\x1b[2m{_printable(behind)}\x1b[0m" if behind else ""
        else:
            behind = _printable(behind)
        line = f"{time} {level} {_printable(record.getMessage())}{behind}"
        if record.exc_info and record.exc_info[0]:
            trace = "".join(traceback.format_exception(*record.exc_info)).rstrip()
            line = "\n".join([line, *map(_printable, trace.splitlines())])
        return line


class _Place(NamedTuple):
    """Where in the code a line comes from."""

    path: str
    line_number: int
    level: int


class _Window:
    """What one place wrote since `start_ns`."""

    __slots__ = ("held_back", "last", "start_ns", "texts")

    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.texts: set[str] = set()
        self.held_back = 0
        self.last: logging.LogRecord | None = None  # that was held back


class Damper:
    """Decides which lines are written. Belongs to one thread at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[_Place, _Window] = {}

    def admit(self, record: logging.LogRecord) -> list[logging.LogRecord]:
        """What to write now that the record has come: what was held back and is due, and the record if it may pass."""
        due: list[logging.LogRecord] = []
        now_ns = self._clock.monotonic_ns()
        place = _Place(record.pathname, record.lineno, record.levelno)
        window = self._windows.get(place)
        if window is None or now_ns - window.start_ns >= WINDOW_NS:
            due = _summary(window)
            window = self._windows[place] = _Window(now_ns)
        text = f"{record.getMessage()} {facts(record)}"
        if text in window.texts or len(window.texts) >= LINES_PER_PLACE_MAX:
            window.held_back += 1
            window.last = record
            return due
        window.texts.add(text)
        return [*due, record]

    def due(self, *, everything: bool = False) -> list[logging.LogRecord]:
        """The counts of what was held back in windows that are over, or in all of them."""
        now_ns = self._clock.monotonic_ns()
        over = [place for place, window in self._windows.items() if everything or now_ns - window.start_ns >= WINDOW_NS]
        return [record for place in over for record in _summary(self._windows.pop(place))]


class ServerLogHandler(logging.StreamHandler[TextIO]):
    """Writes lines, damped."""

    def __init__(self, stream: TextIO, clock: Clock, *, text: bool, colours: bool) -> None:
        super().__init__(stream)
        self._damper = Damper(clock)
        self.setFormatter(TextFormatter(colours=colours) if text else JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.INFO:
            super().emit(record)
            return
        try:
            admitted = self._damper.admit(record)
        except Exception:  # a sentence and its arguments do not fit: the library says so in its own way
            admitted = [record]
        for each in admitted:
            super().emit(each)

    def sum_up(self, *, everything: bool = False) -> None:
        """Write how much was held back; to be called now and then."""
        self.acquire()
        try:
            for record in self._damper.due(everything=everything):
                super().emit(record)
        finally:
            self.release()

    def close(self) -> None:
        self.sum_up(everything=True)
        super().close()


def configure(stream: TextIO, clock: Clock, *, level: str, format: str, no_colour: bool = False) -> ServerLogHandler:
    """Send all lines of this process to the stream."""
    on_terminal = stream.isatty()
    text = format == "text" or (format == "auto" and on_terminal)
    handler = ServerLogHandler(stream, clock, text=text, colours=on_terminal and not no_colour)
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.raiseExceptions = False  # a stream that is gone is no reason to stop
    return handler


def _summary(window: _Window | None) -> list[logging.LogRecord]:
    if window is None or window.last is None:
        return []
    record = window.last
    text = record.getMessage()
    record.msg, record.args = f"{text} ({window.held_back:,} more like this)", None
    return [record]


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _printable(text: str) -> str:
    return text.translate(_CONTROL).encode("utf-8", "backslashreplace").decode()


def _encodable(value: object) -> object:
    """Text as it is but for lone surrogates, which JSON has no bytes for."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
