"""Redrives as facts of the ledgers of a dead-letter topic, so that they go on after a restart.

    key "r" id      partition 0: what was asked for, and how it ended
    key "p" id      every partition: how far the redrive is there; deleted when it is over

The progress on a partition stands in the ledger of that partition, before the note that its letters are under way.
So whatever a crash leaves of the ledger, a letter that was put back is one that the progress names: it is counted,
and counts against the limit. Letters in hand that are still dead were not put back, and are judged again.
"""

from typing import NamedTuple

import msgspec

from goqueue.wire.reports import DeadLetterFilter

ORDER_KEY = b"r"
PROGRESS_KEY = b"p"


class Order(msgspec.Struct, array_like=True, frozen=True):
    """A redrive: what was asked for; and its totals, which count when it is over."""

    id: str
    wanted: DeadLetterFilter
    rate: float
    limit: int
    target_topic: str | None
    max_redrives: int
    to: str
    started_at_ns: int
    ends: list[int]  # by partition: letters from there on came later
    state: str = "running"
    finished_at_ns: int | None = None
    error: str = ""
    totals: tuple[int, int, int, int] = (0, 0, 0, 0)  # matched, redriven, skipped_loop, failed


class Progress(msgspec.Struct, array_like=True, frozen=True):
    """How far a redrive is in one partition, without the letters in hand."""

    next_offset: int  # all before it were judged
    in_hand: bytes
    matched: int
    redriven: int
    skipped_loop: int
    failed: int


class RedriveFact(NamedTuple):
    """One fact about a redrive."""

    redrive_id: str
    value: Order | Progress


encode = msgspec.msgpack.Encoder().encode
_decode_order = msgspec.msgpack.Decoder(Order).decode
_decode_progress = msgspec.msgpack.Decoder(Progress).decode


def is_about_redrives(key: bytes) -> bool:
    """Whether the fact is one of these."""
    return key[:1] in (ORDER_KEY, PROGRESS_KEY)


def order_key(redrive_id: str) -> bytes:
    """The key of what was asked for."""
    return ORDER_KEY + redrive_id.encode()


def progress_key(redrive_id: str) -> bytes:
    """The key of how far the redrive is."""
    return PROGRESS_KEY + redrive_id.encode()


def decode(key: bytes, value: bytes) -> RedriveFact | None:
    """What the fact says; nothing if it is damaged, or from another version."""
    try:
        read = _decode_order if key[:1] == ORDER_KEY else _decode_progress
        return RedriveFact(key[1:].decode(), read(value))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
