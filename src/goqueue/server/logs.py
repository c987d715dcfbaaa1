"""The log of the server: lines of text on a terminal, JSON objects elsewhere.

Code logs with the standard library: `logging.getLogger(__name__)`, a constant sentence, and the facts as `extra`. In
text the facts follow the sentence as key=value; in JSON they are fields. Text from clients may contain anything: it is
escaped, so that it can neither start a new line nor color the terminal.

A client that causes the same error again and again must not fill the disk. Within ten seconds the same line is written
once, and one place in the code writes at most twenty lines. What is held back is counted, and the count is written when
the ten seconds are over.
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
_COLORS: Final = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
_CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {0x0A: "\\n", 0x09: "\\t"}


def facts(record: logging.LogRecord) -> dict[str, object]:
    """The `extra` of the record."""
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
    """One line of text, followed by the traceback of an exception."""

    def __init__(self, *, colors: bool) -> None:
        super().__init__()
        self._colors = colors

    def format(self, record: logging.LogRecord) -> str:
        time = f"{_moment(record):%H:%M:%S.%f}"[:-3]
        level = f"{record.levelname.lower():<8}"
        suffix = "".join(f" {name}={value}" for name, value in facts(record).items())
        if self._colors:
            level = f"\x1b[{_COLORS.get(record.levelname, '0')}m{level}\x1b[0m"
            suffix = f"\x1b[2m{_printable(suffix)}\x1b[0m" if suffix else ""
        else:
            suffix = _printable(suffix)
        line = f"{time} {level} {_printable(record.getMessage())}{suffix}"
        if record.exc_info and record.exc_info[0]:
            trace = "".join(traceback.format_exception(*record.exc_info)).rstrip()
            line = "\n".join([line, *map(_printable, trace.splitlines())])
        return line


class _Place(NamedTuple):
    """The place in the code that a line comes from."""

    path: str
    line_number: int
    level: int


class _Window:
    """The lines of one place since `start_ns`."""

    __slots__ = ("held_back", "last", "start_ns", "texts")

    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.texts: set[str] = set()
        self.held_back = 0
        self.last: logging.LogRecord | None = None  # the last one that was held back


class Damper:
    """Decides which lines are written. Belongs to one thread at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[_Place, _Window] = {}

    def admit(self, record: logging.LogRecord) -> list[logging.LogRecord]:
        """The records to write now: a summary of the last window if it is over, and the record if it may pass."""
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
        """The summaries of windows that are over, or of all windows."""
        now_ns = self._clock.monotonic_ns()
        over = [place for place, window in self._windows.items() if everything or now_ns - window.start_ns >= WINDOW_NS]
        return [record for place in over for record in _summary(self._windows.pop(place))]


class ServerLogHandler(logging.StreamHandler[TextIO]):
    """Writes lines, without floods of repeated ones."""

    def __init__(self, stream: TextIO, clock: Clock, *, text: bool, colors: bool) -> None:
        super().__init__(stream)
        self._damper = Damper(clock)
        self.setFormatter(TextFormatter(colors=colors) if text else JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.INFO:
            super().emit(record)
            return
        try:
            admitted = self._damper.admit(record)
        except Exception:  # the arguments do not fit the format: the library reports that
            admitted = [record]
        for each in admitted:
            super().emit(each)

    def sum_up(self, *, everything: bool = False) -> None:
        """Write the summaries that are due; to be called about once a second."""
        self.acquire()
        try:
            for record in self._damper.due(everything=everything):
                super().emit(record)
        finally:
            self.release()

    def close(self) -> None:
        self.sum_up(everything=True)
        super().close()


def configure(stream: TextIO, clock: Clock, *, level: str, format: str, no_color: bool = False) -> ServerLogHandler:
    """Send the log of this process to the stream."""
    on_terminal = stream.isatty()
    text = format == "text" or (format == "auto" and on_terminal)
    handler = ServerLogHandler(stream, clock, text=text, colors=on_terminal and not no_color)
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.raiseExceptions = False  # a closed stream must not stop the server
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
    """The value; in text, lone surrogates are escaped, because they have no UTF-8 encoding."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
