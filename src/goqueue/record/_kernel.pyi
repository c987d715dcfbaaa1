from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Self, TypeVar

from goqueue.record._kernel_py import OutlineTuple, SummaryTuple
from goqueue.record.header import Buffer
from goqueue.record.headers import HeaderPair, Headers

class Record:
    def __new__(
        cls,
        origin: Any,
        offset: int,
        timestamp_ns: int,
        priority_code: int,
        flags: int,
        key: bytes | None,
        value: bytes,
        encoded_headers: bytes | None,
    ) -> Self: ...
    @property
    def origin(self) -> Any: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ns(self) -> int: ...
    @property
    def priority_code(self) -> int: ...
    @property
    def flags(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes: ...
    @property
    def encoded_headers(self) -> bytes | None: ...

_R = TypeVar("_R", bound=Record)

def crc32c(data: Buffer, crc: int, /) -> int: ...
def crc32c_table(data: Buffer, crc: int, /) -> int: ...
def murmur2(key: bytes, /) -> int: ...
def hardware_crc() -> bool: ...
def encode(
    values: Iterable[Buffer | None],
    keys: Iterable[Buffer | None] | None,
    headers: Iterable[Headers | Sequence[HeaderPair] | None] | None,
    priorities: int | Iterable[int],
    timestamps: int | Iterable[int],
    flags: int | Iterable[int],
    /,
) -> bytearray: ...
def stamp(
    buffer: bytearray | memoryview,
    first_offset: int,
    timestamp: int,
    flags_allowed: int,
    value_bytes_max: int,
    position: int,
    next_index_at: int,
    /,
) -> SummaryTuple: ...
def scan(
    buffer: Buffer,
    min_offset: int,
    dense: bool,
    from_offset: int,
    to_offset: int,
    position: int,
    next_index_at: int,
    positions: bool,
    /,
) -> SummaryTuple: ...
def resync(buffer: Buffer, start: int, min_offset: int, max_offset: int, /) -> int: ...
def decode(buffer: Buffer, origin: object, record_type: type[_R], verify: bool, /) -> tuple[int, int, list[_R]]: ...
def columns(buffer: Buffer, wanted: int, verify: bool, /) -> tuple[int, int, tuple[Any, ...]]: ...
def filter(
    buffer: Buffer,
    from_offset: int,
    to_offset: int,
    hide_flags: int,
    hidden: Buffer,
    due: int,
    latest: dict[bytes, int] | None,
    tombstones_before: int,
    /,
) -> tuple[int, int, bytearray]: ...
def strip(buffer: Buffer, keep: int, /) -> tuple[int, int, bytearray]: ...
def latest(buffer: Buffer, table: dict[bytes, int], /) -> tuple[int, int]: ...
def waits(buffer: Buffer, now: int, /) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]: ...
def outline(buffer: Buffer, /) -> OutlineTuple: ...
def select(
    buffer: Buffer, wanted: Buffer | array[int], max_bytes: int, /
) -> tuple[int, int, bytearray, int, int, int]: ...
