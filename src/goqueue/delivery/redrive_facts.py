"""Redrives as facts in the ledgers of a dead-letter topic, so that they continue after a restart.

    key "ro:" id    partition 0: the order, and how it ended
    key "rp:" id    every partition: the progress there; deleted when the redrive ends

The progress on a partition is written to the ledger of that partition before the fact that a batch is being redriven.
So after a crash the progress names every dead letter that was redriven: it is counted, and counts against the limit.
Dead letters of the last batch that are still dead were not redriven, and are handled again.
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
    """The arguments of a redrive, and its totals after its end."""

    id: str
    wanted: DeadLetterFilter
    rate: Rate
    limit: Whole
    target_topic: str | None
    max_redrives: Whole
    to: str
    started_at_ns: int
    ends: list[Whole]  # by partition: the end of the dead-letter topic when the redrive started
    state: RedriveState = "running"
    finished_at_ns: int | None = None
    error: str = ""
    totals: tuple[Whole, Whole, Whole, Whole] = (0, 0, 0, 0)  # matched, redriven, skipped_loop, failed
    topic: str = ""  # whose dead letters; an older version does not say: a dead-letter topic had those of one only


class RedriveProgress(msgspec.Struct, array_like=True, frozen=True):
    """The progress of a redrive in one partition, without the batch under way."""

    next_offset: Whole  # all before it were handled
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
    return key.startswith((ORDER_KEY, PROGRESS_KEY))


def order_key(redrive_id: str) -> bytes:
    return ORDER_KEY + redrive_id.encode()


def progress_key(redrive_id: str) -> bytes:
    return PROGRESS_KEY + redrive_id.encode()


def decode(key: bytes, value: bytes) -> RedriveFact:
    """The decoded fact. Raises `ValueError` if it cannot be decoded."""
    redrive_id = key[_KEY_BYTES:].decode()
    if key.startswith(PROGRESS_KEY):
        progress = _decode_progress(value)
        offsets_of(progress.in_hand)
        return RedriveFact(redrive_id, progress)
    order = _decode_order(value)
    if order.id != redrive_id:
        raise ValueError(f"it speaks of the redrive {order.id}")
    return RedriveFact(redrive_id, order)
