"""What consumers saw and were told, written down so that it outlives them, and what must hold of all of it together.

Each consumer writes rows of a fixed size to a file of its own, with one write for what belongs together: a poll that
returned, a settlement that is about to be sent, its answer. A consumer that is killed leaves all that it knew. A
settlement without an answer may have happened or not; one with an answer has.

Deliveries have numbers that grow while a broker lives. A new broker begins anywhere; which of two brokers was the
earlier one, their first deliveries tell.
"""

import os
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from time import time_ns
from typing import NamedTuple

from goqueue import Message
from goqueue.delivery.receipts import delivery_of

_ROW = struct.Struct(">BBHQQQ")
_BOOT_BIT = 32


class Fact(IntEnum):
    """What happened to a delivery."""

    DELIVERED = 0
    ACKING = 1  # is about to be sent
    ACKED = 2  # was answered
    REJECTING = 3
    REJECTED = 4
    NACKED = 5
    RELEASED = 6
    EXTENDED = 7
    REFUSED = 8  # the broker said that the lease is over
    FAILED = 9  # who knows


class Row(NamedTuple):
    fact: Fact
    attempt: int
    partition: int
    offset: int
    delivery_id: int
    at_ns: int


class Witness:
    """Writes down what one consumer sees."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, fact: Fact, messages: Iterable[Message]) -> None:
        """It happened to all of them."""
        now_ns = time_ns()
        rows = b"".join(
            _ROW.pack(fact, min(255, one.delivery_count), one.partition, one.offset, delivery_id(one), now_ns)
            for one in messages
        )
        if rows:
            os.write(self._file, rows)

    def close(self) -> None:
        os.close(self._file)


def delivery_id(message: Message) -> int:
    """The number of the delivery that brought the message."""
    batch = message.origin.batch
    return delivery_of(batch.nonce)


def rows_of(path: Path) -> Iterator[Row]:
    raw = path.read_bytes()
    for values in _ROW.iter_unpack(raw[: len(raw) // _ROW.size * _ROW.size]):
        yield Row(Fact(values[0]), *values[1:])


def has_delivery(path: Path, *, skip_bytes: int) -> bool:
    """Whether something was delivered since the file was so long."""
    with path.open("rb") as file:
        file.seek(skip_bytes)
        return Fact.DELIVERED in file.read()[:: _ROW.size]


Place = tuple[int, int]
"""Partition and offset."""
Order = tuple[int, int]
"""Which broker it was, and the number of the delivery."""


@dataclass
class Story:
    """All that is known of one message."""

    deliveries: dict[Order, int] = field(default_factory=dict)  # -> how often it had been delivered then
    noted_ns: dict[Order, int] = field(default_factory=dict)
    acked: dict[Order, int] = field(default_factory=dict)  # -> when that was answered
    rejected: dict[Order, int] = field(default_factory=dict)
    maybe: set[Order] = field(default_factory=set)  # acks that were sent
    maybe_rejected: set[Order] = field(default_factory=set)


class Testimony:
    """What all witnesses say together."""

    def __init__(self, directory: Path) -> None:
        rows = [row for path in sorted(directory.glob("*.rows")) for row in rows_of(path)]
        self.counts = Counter(row.fact for row in rows)
        boots: dict[int, int] = {}
        for row in rows:
            boot = row.delivery_id >> _BOOT_BIT
            boots[boot] = min(boots.get(boot, row.at_ns), row.at_ns)
        ranks = {boot: rank for rank, boot in enumerate(sorted(boots, key=boots.__getitem__))}
        self.brokers = len(boots)
        self.stories: defaultdict[Place, Story] = defaultdict(Story)
        for row in rows:
            order = ranks[row.delivery_id >> _BOOT_BIT], row.delivery_id
            story = self.stories[row.partition, row.offset]
            match row.fact:
                case Fact.DELIVERED:
                    assert order not in story.deliveries, f"one delivery came twice: {row}"
                    story.deliveries[order] = row.attempt
                    story.noted_ns[order] = row.at_ns
                case Fact.ACKING:
                    story.maybe.add(order)
                case Fact.ACKED:
                    assert order not in story.acked, f"one delivery was acknowledged twice: {row}"
                    story.acked[order] = row.at_ns
                case Fact.REJECTING:
                    story.maybe_rejected.add(order)
                case Fact.REJECTED:
                    story.rejected[order] = row.at_ns
                case Fact.REFUSED:
                    story.maybe.discard(order)
                case _:
                    pass

    def check(
        self, ends: list[int], dead: list[Place], rejected: set[Place], *, max_deliveries: int, lease_ns: int
    ) -> None:
        """Every message was acknowledged or is a dead letter, once, and did not come again.

        When a broker is killed before it answers an ack, the message may come again to somebody else. Whoever was not
        answered asks the next broker, and hears that the message is done, when it is: by somebody else, or because it
        was its last lease that ran out. So only within its lease is the last delivery acknowledged in truth; of another
        one that may be said once the message is done, and not before.
        """
        buried = set(dead)
        assert len(buried) == len(dead), f"dead twice: {[place for place, n in Counter(dead).items() if n > 1][:10]}"
        every = {(partition, offset) for partition, end in enumerate(ends) for offset in range(end)}
        assert buried <= every
        assert self.stories.keys() <= every
        for place in every:
            story = self.stories[place]
            told = f"{place}: {story}"
            last = max(story.deliveries, default=(0, 0))
            assert story.acked or story.maybe or place in buried, f"lost: {told}"
            assert place not in rejected or story.maybe_rejected, f"nobody rejected it: {told}"
            is_in_time = last in story.acked and story.acked[last] < story.noted_ns[last] + lease_ns
            is_true = last in story.acked and (is_in_time or self.brokers == 1)
            assert not (is_true and place in buried), f"acknowledged and dead: {told}"
            assert last not in story.rejected or place in buried, f"rejected and not dead: {told}"
            assert max(story.deliveries.values(), default=1) <= max_deliveries, f"came too often: {told}"
            for order, at_ns in (*story.acked.items(), *story.rejected.items()):
                is_over = order >= last or (self.brokers > 1 and at_ns >= story.noted_ns[last])
                assert is_over, f"came again after it was done: {told}"

    def check_order(self, keys: dict[Place, bytes]) -> None:
        """No message of a key came before an earlier one was through, unless both came together."""
        by_key: defaultdict[tuple[int, bytes], list[Place]] = defaultdict(list)
        for place, key in keys.items():
            by_key[place[0], key].append(place)
        for (_, key), places in by_key.items():
            before: tuple[Place, Story] | None = None
            for place in sorted(places):
                story = self.stories[place]
                if not story.deliveries:
                    continue
                if before is not None:
                    first, earlier = min(story.deliveries), before[1].deliveries
                    assert first in earlier or first > max(earlier), f"{key!r}: {place} {story} after {before}"
                before = place, story
