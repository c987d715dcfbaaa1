"""Keyed facts in a partition of an internal topic, of which the last one for each key counts.

What a coordinator knows it writes here before it says so, and reads here when it starts. The topic is compacted, so
it holds not much more than what is true now; a fact of None is a tombstone, and takes its key away.

The facts of one `put` are one batch, in their order. A crash before it is answered may keep none of them, all, or the
first few, so what makes the others count comes last. Damaged records are passed over: what they said is lost,
and an older fact of the same key counts again.
"""

from collections.abc import Mapping

from goqueue.broker.live_partition import LivePartition
from goqueue.broker.pending import Pending
from goqueue.record import kernel
from goqueue.record.message import Message

LOAD_BYTES = 4 * 1024 * 1024


class Journal:
    """The facts of one partition."""

    def __init__(self, live: LivePartition) -> None:
        self._live = live

    def load(self) -> dict[bytes, bytes]:
        """The last value of each key, in the order in which the keys last changed."""
        facts: dict[bytes, bytes] = {}
        reader = self._live.log.reader(self._live.log.start_offset)
        while (chunk := reader.read(max_bytes=LOAD_BYTES)).record_count:
            for message in kernel.decode(chunk.records, self._live.origin, Message, verify=False):
                if message.key is None:
                    continue
                facts.pop(message.key, None)
                if not message.tombstone:
                    facts[message.key] = message.value
        return facts

    def put(self, facts: Mapping[bytes, bytes | None]) -> Pending[None]:
        """Write the facts, None deletes; done when the log vouches for them. If it raises, nothing was written."""
        if not facts:
            return Pending.of(None)
        appended = self._live.append(kernel.encode(list(facts.values()), keys=list(facts)))
        return self._live.when_stored(appended.last_offset + 1, None)
