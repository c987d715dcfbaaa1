"""Traces in a file, one JSON object per line; a new file begins when it is large or the day ends.

    traces.jsonl                      the current file
    traces-20260131-0001.jsonl        a file of that day (UTC), lowest number first

A limited number of old files is kept. If a crash has left an incomplete line, it is ended before the next one, so that
no other line is affected. If a write fails its rows are lost: the caller gets the error, and the next export retries.
"""

import posixpath
import re
from collections.abc import Sequence
from typing import Protocol

from goqueue.clock import Clock
from goqueue.times import format_time
from goqueue.tracing.export import Export
from goqueue.tracing.table import encode_line

MAX_BYTES = 10 * 1024 * 1024
KEEP = 10
HEAD_BYTES = 4096
_TIME = re.compile(rb'"time_ns":(-?\d{1,19})')


class JsonLinesFile(Protocol):
    """A file that grows at its end."""

    def size(self) -> int: ...
    def pread(self, position: int, size: int) -> bytes: ...
    def append(self, *chunks: bytes) -> int: ...
    def close(self) -> None: ...


class NamedEntry(Protocol):
    """A name in a directory."""

    @property
    def name(self) -> str: ...


class LineDisk(Protocol):
    """The file system of the files."""

    def open(self, path: str, *, create: bool = False) -> JsonLinesFile: ...
    def entries(self, directory: str) -> Sequence[NamedEntry]: ...
    def make_directory(self, path: str) -> None: ...
    def rename(self, source: str, target: str) -> None: ...
    def remove(self, path: str) -> None: ...


class JsonlExporter:
    """Writes the table of rows to files."""

    name = "jsonl"
    needs_trace_ids = False

    def __init__(
        self, disk: LineDisk, path: str, *, clock: Clock, max_bytes: int = MAX_BYTES, keep: int = KEEP
    ) -> None:
        self._disk = disk
        self._directory, name = posixpath.split(path)
        self._path = path
        self._stem, self._suffix = posixpath.splitext(name)
        self._old_name = re.compile(rf"{re.escape(self._stem)}-(\d{{8}})-(\d{{4,}}){re.escape(self._suffix)}")
        self._clock = clock
        self._max_bytes = max_bytes
        self._keep = keep
        self._file: JsonLinesFile | None = None
        self._size = 0
        self._day = ""

    def export(self, exports: Sequence[Export]) -> None:
        """Write all of them before returning."""
        lines = [encode_line(line) + b"\n" for export in exports for line in export.lines()]
        try:
            self._write(lines)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, lines: Sequence[bytes]) -> None:
        today = _day(self._clock.wall_ns())
        some: list[bytes] = []
        file = self._file or self._begin(today)
        for line in lines:
            if self._size and (self._size + len(line) > self._max_bytes or self._day != today):
                _append(file, some)
                some = []
                file = self._rotate(today)
            some.append(line)
            self._size += len(line)
        _append(file, some)

    def _begin(self, today: str) -> JsonLinesFile:
        """Open the file and continue after its content."""
        self._disk.make_directory(self._directory or ".")
        file = self._file = self._disk.open(self._path, create=True)
        self._size = file.size()
        self._day = today
        if self._size:
            found = _TIME.search(file.pread(0, HEAD_BYTES))
            self._day = _day(int(found[1])) if found else today
            if file.pread(self._size - 1, 1) != b"\n":
                file.append(b"\n")
                self._size += 1
        return file

    def _rotate(self, today: str) -> JsonLinesFile:
        """Rename the file, and begin the next one."""
        self.close()
        old = self._old_names()
        number = 1 + max((int(number) for day, number, _ in old if day == self._day), default=0)
        name = f"{self._stem}-{self._day}-{number:04d}{self._suffix}"
        self._disk.rename(self._path, posixpath.join(self._directory, name))
        kept = sorted([*old, (self._day, f"{number:04d}", name)], key=lambda one: (one[0], int(one[1])))
        for _, _, gone in kept[: max(0, len(kept) - self._keep)]:
            self._disk.remove(posixpath.join(self._directory, gone))
        return self._begin(today)

    def _old_names(self) -> list[tuple[str, str, str]]:
        names = [entry.name for entry in self._disk.entries(self._directory or ".")]
        matches = [match for name in names if (match := self._old_name.fullmatch(name))]
        return [(match[1], match[2], match[0]) for match in matches]


def _append(file: JsonLinesFile, lines: Sequence[bytes]) -> None:
    if lines:
        file.append(b"".join(lines))


def _day(time_ns: int) -> str:
    return format_time(time_ns)[:10].replace("-", "")
