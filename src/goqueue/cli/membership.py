"""A member of a group that prints what it is given.

Messages are written, flushed, and acknowledged only then, so that what could not be printed goes to somebody else; a
Ctrl-C does not come between. What was looked at only is given back as if it had never been delivered.
"""

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from goqueue.cli.interrupts import interrupts_held_back
from goqueue.cli.output import warn
from goqueue.cli.rendering import Render
from goqueue.errors import ReceiptError
from goqueue.wire.reports import Settlement

if TYPE_CHECKING:
    from goqueue.client.consumer import Consumer
    from goqueue.record.message import Message

BATCH = 500
FOLLOW_TIMEOUT = "20s"
EMPTY_TIMEOUT = "500ms"
"""Nothing is left if nothing came for so long; partitions that change hands need a moment."""


class Mode(StrEnum):
    """How a group shares messages among its members."""

    PARTITIONED = "partitioned"
    SHARED = "shared"
    KEY_SHARED = "key-shared"


class Start(StrEnum):
    """Where a group begins that has no position yet."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Ack(StrEnum):
    """How messages that were printed are acknowledged."""

    EACH = "each"
    AUTO = "auto"
    NONE = "none"

    @property
    def of_consumer(self) -> str:
        """What a consumer has to be for it: one that commits positions by hand, or one that settles messages."""
        return "offsets" if self is Ack.AUTO else "each"


class Stop(StrEnum):
    """When a member has enough."""

    EMPTY = "empty"


def take(consumer: "Consumer", render: Render, *, ack: Ack, limit: int | None, follow: bool) -> None:
    """Print what the group gives us, up to the limit or, unless we follow, until nothing is left."""
    timeout = FOLLOW_TIMEOUT if follow else EMPTY_TIMEOUT
    looked_at: list[Message] = []
    left = limit
    try:
        while left is None or left > 0:
            batch = consumer.poll(BATCH if left is None else min(BATCH, left), timeout)
            if not batch and not follow:
                return
            match ack:
                case Ack.EACH:
                    with interrupts_held_back():
                        _print_and_acknowledge(batch, render, consumer)
                case Ack.AUTO:
                    with interrupts_held_back():
                        _print(batch, render)
                        consumer.commit()
                case Ack.NONE:
                    looked_at += batch
                    _print(batch, render)
            left = None if left is None else left - len(batch)
    finally:
        _give_back(consumer, looked_at)


def _print(batch: "Sequence[Message]", render: Render) -> None:
    sys.stdout.buffer.writelines(map(render, batch))
    sys.stdout.buffer.flush()


def _print_and_acknowledge(batch: "Sequence[Message]", render: Render, consumer: "Consumer") -> None:
    """Acknowledge what was printed and give back what was not, whatever comes between."""
    lines = sys.stdout.buffer
    written = printed = 0
    try:
        try:
            for message in batch:
                lines.write(render(message))
                written += 1
        finally:
            lines.flush()
            printed = written
    finally:
        _give_back(consumer, batch[printed:])
        try:
            consumer.ack(batch[:printed])
        except ReceiptError as error:
            warn(f"not all that was printed is acknowledged, and will come again: {error}")


def _give_back(consumer: "Consumer", messages: "Sequence[Message]") -> None:
    """As if they had never been delivered. Leaving the group gives them back, too, but counts as a try."""
    if messages:
        consumer.settle_soon(messages, Settlement("release"))
