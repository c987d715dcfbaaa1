"""The requests of the source to the broker, from the driver and from the tasks.

Spark pickles readers, rebuilds them and discards them. So a reader holds a `Link`, which is only an address, and each
process has one client per address. A driver that cannot reach a broker fails within seconds. After the first answer,
and in every task, requests are retried for longer: a restart of the broker delays the job and does not fail it.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, cast

from goqueue.client import forks
from goqueue.client.options import Field
from goqueue.client.scanning import SCAN_BYTES, Scan
from goqueue.client.sync import Client
from goqueue.errors import GoQueueError, PartitionNotFound, TopicNotFound
from goqueue.names import TopicPartition
from goqueue.spark.options import DelayedMessages, ReadIsolation, SourceOptions
from goqueue.spark.plan import Bounds, OffsetRange, Positions, TopicBounds, World
from goqueue.spark.spans import Spans, minus
from goqueue.times import format_time
from goqueue.wire.scan_reports import DueTime, HiddenRange, Piece
from goqueue.wire.verbs import TopicState

FIRST_CONTACT: Final = "4s"
PATIENCE: Final = "60s"
BARE_SCAN_BYTES: Final = 4 * SCAN_BYTES
"""The bytes that the broker reads per request if it leaves out the values: the answer is much smaller."""

_clients: dict[tuple[str, str, int], Client] = {}


class Link:
    """The address of the broker of one query; can be pickled."""

    def __init__(self, server: str, api_key: str) -> None:
        self._server = server
        self._api_key = api_key

    @property
    def client(self) -> Client:
        """The client of this process, which retries for up to `PATIENCE`."""
        key = (self._server, self._api_key, forks.generation)  # a fork must not use the sockets of its parent
        if key not in _clients:
            _clients[key] = Client(self._server, api_key=self._api_key, client_id="spark", timeout=PATIENCE)
        return _clients[key]

    def reach(self) -> Client:
        """The same client, but fail within `FIRST_CONTACT` if no broker answers."""
        if (self._server, self._api_key, forks.generation) not in _clients:
            with Client(self._server, api_key=self._api_key, client_id="spark", timeout=FIRST_CONTACT) as first:
                first.stats()
        return self.client

    def world(self, options: SourceOptions, *, missing_ok: bool = False) -> World:
        """The current state of the topics that are read. With `missing_ok`, absent ones are left out."""
        client = self.reach()
        names: Iterable[str] = options.assign or options.subscribe
        if options.subscribe_pattern is not None:
            matches = re.compile(options.subscribe_pattern).fullmatch
            names, missing_ok = filter(matches, client.topics()), True  # one may be deleted after the listing
        found = {}
        for name in names:
            try:
                state = client.describe_topic(name)
            except TopicNotFound:
                if not missing_ok:
                    raise
                continue
            wanted = None if options.assign is None else options.assign[name]
            found[name] = bounds_of(state, options.isolation, wanted, missing_ok=missing_ok)
        return found

    def bounds(self, topic: str, isolation: ReadIsolation) -> TopicBounds | None:
        """The current state of one topic; None if it does not exist."""
        try:
            return bounds_of(self.client.describe_topic(topic), isolation)
        except TopicNotFound:
            return None

    def offsets_at(self, topics: Iterable[str], time_ns: int) -> dict[str, Sequence[int]]:
        """By topic and partition, the first offset at or after a time."""
        return {topic: self.client.offsets(topic, time=format_time(time_ns)) for topic in topics}

    def group_positions(self, group: str) -> dict[TopicPartition, int]:
        """The positions of a group; none if the group does not exist."""
        return {TopicPartition(one.topic, one.partition): one.offset for one in self.client.group_positions(group)}

    def group_done(self, group: str) -> dict[TopicPartition, Spans]:
        """What a group has done above its positions, and does not read again."""
        found = self.client.group_done_above(group)
        return {TopicPartition(one.topic, one.partition): tuple(one.ranges) for one in found}

    def commit(self, group: str, positions: Positions, world: World) -> None:
        """Commit the positions of a group, except in topics that were deleted or created again."""
        places = {
            (topic, partition): (offset, known.pending.get(partition, ()))
            for topic, known in positions.items()
            for partition, offset in known.offsets.items()
            if topic in world and world[topic].topic_id == known.topic_id and partition in world[topic].partitions
        }
        if places:
            offsets = {name: offset for name, (offset, _) in places.items()}
            self.client.commit_group(group, offsets, pending={name: left for name, (_, left) in places.items()})

    def waiting(self, one: OffsetRange, isolation: ReadIsolation) -> Spans:
        """The delayed messages of the range that are not due and not cancelled."""
        hidden = self.hidden(one, isolation, DelayedMessages.DUE)
        if not hidden:
            return ()
        never = self.hidden(one, isolation, DelayedMessages.INCLUDE)
        return minus(
            [(each.first_offset, each.end_offset) for each in hidden],
            [(each.first_offset, each.end_offset) for each in never],
        )

    def pieces(self, one: OffsetRange, piece_bytes: int) -> list[Piece]:
        """The range cut into pieces of about `piece_bytes` bytes."""
        return self.client.scan_pieces(*one, piece_bytes=piece_bytes)

    def hidden(self, one: OffsetRange, isolation: ReadIsolation, delayed: DelayedMessages) -> list[HiddenRange]:
        """The offsets of the range that are hidden now, control records not included."""
        return self.client.hidden_ranges(*one, isolation=isolation.value, delayed=delayed.value)

    def rescheduled(self, one: OffsetRange) -> list[DueTime]:
        """The delayed messages of the range that were rescheduled, with their new times."""
        return self.client.rescheduled_times(*one)

    def scan(
        self, one: OffsetRange, isolation: ReadIsolation, delayed: DelayedMessages, *, without: Sequence[str] = ()
    ) -> Scan:
        """The visible records of the range, part by part."""
        read_bytes = BARE_SCAN_BYTES if "value" in without else SCAN_BYTES
        return self.client.scan(
            *one,
            isolation=isolation.value,
            delayed=delayed.value,
            without=cast("Sequence[Field]", without),
            read_bytes=read_bytes,
            on_damage="skip",  # the gaps of each part are judged by failOnDataLoss
        )

    def close(self) -> None:
        """Close the client of this process, if there is one."""
        client = _clients.pop((self._server, self._api_key, forks.generation), None)
        if client is not None:
            client.close()


def bounds_of(
    state: TopicState, isolation: ReadIsolation, partitions: Sequence[int] | None = None, *, missing_ok: bool = False
) -> TopicBounds:
    """The start and end of the partitions of a topic, or of the given ones, as readers of that isolation see them."""
    is_committed = isolation is ReadIsolation.READ_COMMITTED
    found: Mapping[int, Bounds] = {
        one.partition: Bounds(
            one.start_offset,
            max(one.start_offset, one.last_stable_offset if is_committed else one.high_watermark),
            one.size_bytes,
        )
        for one in state.partitions
    }
    if partitions is not None:
        for partition in partitions:
            if partition not in found and not missing_ok:
                raise PartitionNotFound(state.name, partition)
        found = {partition: found[partition] for partition in partitions if partition in found}
    return TopicBounds(state.topic_id, found)


@contextmanager
def readable_errors() -> Iterator[None]:
    """Show an error of GoQueue to the user as one sentence, without a traceback.

    Spark shows the traceback of an error in a Python worker, unless this variable is set. It is set only in this
    process, and a worker that raises ends.
    """
    try:
        yield
    except GoQueueError as error:
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise error.with_traceback(None) from None
