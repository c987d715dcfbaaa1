"""Redrives as facts of the ledgers of a dead-letter topic, so that they go on after a restart.

    key "ro:" id    partition 0: what was asked for, and how it ended
    key "rp:" id    every partition: how far the redrive is there; deleted when it is over

The progress on a partition stands in the ledger of that partition, before the note that its letters are under way.
So whatever a crash leaves of the ledger, a letter that was put back is one that the progress names: it is counted,
and counts against the limit. Letters in hand that are still dead were not put back, and are judged again.
"""

from typing import Annotated, Literal, NamedTuple

import msgspec

from goqueue.delivery.ledger import Whole, offsets_of
from goqueue.wire.reports import DeadLetterFilter

ORDER_KEY = b"ro:"
PROGRESS_KEY = b"rp:"
_KEY_BYTES = len(ORDER_KEY)

Rate = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]
RedriveState = Literal["running", "done", "stopped", "failed"]


class RedriveOrder(msgspec.Struct, array_like=True, frozen=True):
    """A redrive: what was asked for; and its totals, which count when it is over."""

    id: str
    wanted: DeadLetterFilter
    rate: Rate
    limit: Whole
    target_topic: str | None
    max_redrives: Whole
    to: str
    started_at_ns: int
    ends: list[Whole]  # by partition: letters from there on came later
    state: RedriveState = "running"
    finished_at_ns: int | None = None
    error: str = ""
    totals: tuple[Whole, Whole, Whole, Whole] = (0, 0, 0, 0)  # matched, redriven, skipped_loop, failed


class RedriveProgress(msgspec.Struct, array_like=True, frozen=True):
    """How far a redrive is in one partition, without the letters in hand."""

    next_offset: Whole  # all before it were judged
    in_hand: bytes
    matched: Whole
    redriven: Whole
    skipped_loop: Whole
    failed: Whole


class RedriveFact(NamedTuple):
    """One fact about a redrive."""

    redrive_id: str
    value: RedriveOrder | RedriveProgress


encode = msgspec.msgpack.Encoder().encode
_decode_order = msgspec.msgpack.Decoder(RedriveOrder).decode
_decode_progress = msgspec.msgpack.Decoder(RedriveProgress).decode


def is_about_redrives(key: bytes) -> bool:
    """Whether the fact is one of these."""
    return key.startswith((ORDER_KEY, PROGRESS_KEY))


def order_key(redrive_id: str) -> bytes:
    """The key of what was asked for."""
    return ORDER_KEY + redrive_id.encode()


def progress_key(redrive_id: str) -> bytes:
    """The key of how far the redrive is."""
    return PROGRESS_KEY + redrive_id.encode()


def decode(key: bytes, value: bytes) -> RedriveFact:
    """What the fact says. Raises `ValueError` if it cannot be understood."""
    redrive_id = key[_KEY_BYTES:].decode()
    if key.startswith(PROGRESS_KEY):
        progress = _decode_progress(value)
        offsets_of(progress.in_hand)
        return RedriveFact(redrive_id, progress)
    order = _decode_order(value)
    if order.id != redrive_id:
        raise ValueError(f"it speaks of the redrive {order.id}")
    return RedriveFact(redrive_id, order)
