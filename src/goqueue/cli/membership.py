"""A member of a group that prints the messages that it is leased.

Messages are written, flushed, and only then acknowledged, so that a message that could not be printed goes to another
member; Ctrl-C is held back between the two. With `--ack none` messages are released as if never delivered.
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
    from goqueue.client.received import Message

BATCH = 500
FOLLOW_TIMEOUT = "20s"
EMPTY_TIMEOUT = "500ms"
"""After this long without a message the group has none left. A partition that changes owner takes less."""


class GroupMode(StrEnum):
    """How a group shares messages among its members."""

    PARTITIONED = "partitioned"
    SHARED = "shared"
    KEY_SHARED = "key-shared"


class GroupStart(StrEnum):
    """Where a group without a position starts."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Ack(StrEnum):
    """How printed messages are acknowledged."""

    EACH = "each"
    AUTO = "auto"
    NONE = "none"

    @property
    def of_consumer(self) -> str:
        """The consumer that this needs: one that commits positions by hand, or one that settles messages."""
        return "offsets" if self is Ack.AUTO else "each"


class Stop(StrEnum):
    """When a member stops."""

    EMPTY = "empty"


def take(consumer: "Consumer", render: Render, *, ack: Ack, limit: int | None, follow: bool) -> None:
    """Print messages up to the limit or, without `follow`, until the group has none left."""
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
                    looked_at += batch  # kept until the end: a released message would be polled again
                    _print(batch, render)
            left = None if left is None else left - len(batch)
    finally:
        _give_back(consumer, looked_at)


def _print(batch: "Sequence[Message]", render: Render) -> None:
    sys.stdout.buffer.writelines(map(render, batch))
    sys.stdout.buffer.flush()


def _print_and_acknowledge(batch: "Sequence[Message]", render: Render, consumer: "Consumer") -> None:
    """Print messages, acknowledge the printed ones, and release the others even if printing fails."""
    lines = sys.stdout.buffer
    written = printed = 0
    try:
        try:
            for message in batch:
                lines.write(render(message))
                written += 1
        finally:
            lines.flush()
            printed = written  # only if the flush succeeds: what a broken pipe leaves in the buffer is not printed
    finally:
        _give_back(consumer, batch[printed:])
        try:
            consumer.ack(batch[:printed])
        except ReceiptError as error:
            warn(f"some printed messages are not acknowledged and will be delivered again: {error}")


def _give_back(consumer: "Consumer", messages: "Sequence[Message]") -> None:
    """Release messages as if never delivered. Leaving the group releases them, too, but counts as a delivery."""
    if messages:
        consumer.settle_soon(messages, Settlement("release"))
