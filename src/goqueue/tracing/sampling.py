"""Which messages are traced.

The rate of a topic is a share of its messages, chosen without work per message: offsets are divided into stretches of
1,024, and a hash of topic, partition and number of the stretch says whether all of it is in or out. So every event of a
message gets the same decision, also after a restart.

Some messages are decided individually, which overrides their stretch:

    `traceparent` with the sampled flag       in
    `traceparent` without it                  out
    copies that the broker makes              in: they continue the trace of the original
    something went wrong with the message     in, from then on

These decisions are kept for the latest messages only. Rate 0 switches a topic off altogether.
"""

from collections import deque
from functools import lru_cache

from mmh3 import hash64
from pyroaring import BitMap64

from goqueue.names import TopicPartition

STRETCH_BITS = 10
DECISIONS_MAX = 10_000
"""How many individual decisions, each for a batch, are remembered."""
_HASHES = 1 << 64


class Sampler:
    """Decides which messages of a batch are traced."""

    def __init__(self, *, decisions_max: int = DECISIONS_MAX) -> None:
        self._in: dict[TopicPartition, BitMap64] = {}
        self._out: dict[TopicPartition, BitMap64] = {}
        self._order: deque[tuple[dict[TopicPartition, BitMap64], TopicPartition, BitMap64]] = deque()
        self._decisions_max = decisions_max

    def take_in(self, source: TopicPartition, offsets: BitMap64) -> None:
        """Trace these messages, even if they were left out before."""
        self._decide(self._in, source, offsets)

    def leave_out(self, source: TopicPartition, offsets: BitMap64) -> None:
        """Do not trace these messages."""
        self._decide(self._out, source, offsets)

    def takes_all(self, source: TopicPartition, rate: float) -> bool:
        """Whether every message of the partition is traced."""
        return rate >= 1 and not (self._out and source in self._out)

    def choose(self, source: TopicPartition, rate: float, offsets: BitMap64) -> BitMap64:
        """The offsets that are traced."""
        chosen = self._by_stretch(source, rate, offsets) if rate < 1 else offsets.copy()
        if source in self._out:
            chosen -= self._out[source]
        if source in self._in:
            chosen |= offsets & self._in[source]
        return chosen

    def choose_range(self, source: TopicPartition, rate: float, first: int, end: int) -> BitMap64:
        """The same for the offsets [first, end)."""
        is_simple = rate < 1 and not (self._in and source in self._in) and not (self._out and source in self._out)
        if (
            is_simple
            and (end - 1) >> STRETCH_BITS == first >> STRETCH_BITS
            and not is_in(source, first >> STRETCH_BITS, rate)
        ):
            return BitMap64()
        offsets = BitMap64()
        offsets.add_range(first, end)
        return self.choose(source, rate, offsets)

    def forget(self, topic: str) -> None:
        """The topic was deleted."""
        for decided in (self._in, self._out):
            for source in [source for source in decided if source.topic == topic]:
                del decided[source]
        self._order = deque(one for one in self._order if one[1].topic != topic)

    def _by_stretch(self, source: TopicPartition, rate: float, offsets: BitMap64) -> BitMap64:
        chosen = BitMap64()
        end, last = 0, offsets.max() if offsets else -1
        while end <= last:
            at = offsets.next_set_bit(end)
            stretch = at >> STRETCH_BITS
            end = (stretch + 1) << STRETCH_BITS
            if is_in(source, stretch, rate):
                chosen.add_range(at, end)
        chosen &= offsets
        return chosen

    def _decide(self, decided: dict[TopicPartition, BitMap64], source: TopicPartition, offsets: BitMap64) -> None:
        if not offsets:
            return
        if source in decided:
            decided[source] |= offsets
        else:
            decided[source] = offsets.copy()
        self._order.append((decided, source, offsets.copy()))
        if len(self._order) > self._decisions_max:
            _take_away(*self._order.popleft())


def _take_away(decided: dict[TopicPartition, BitMap64], source: TopicPartition, offsets: BitMap64) -> None:
    if source in decided:
        decided[source] -= offsets
        if not decided[source]:
            del decided[source]


@lru_cache(maxsize=1_024)
def is_in(source: TopicPartition, stretch: int, rate: float) -> bool:
    """Whether a stretch of offsets is traced at that rate; if so, it is at every higher rate, too."""
    number: int = hash64(f"{source.topic}\x00{source.partition}\x00{stretch}".encode(), signed=False)[0]
    return number < rate * _HASHES
