"""A broker that is killed while much is pending: delays, leases and retries, none of which may be lost or early.

Holders lease messages, some for long and some for a moment, and send a few back to be retried at a time that is
known; then messages with a delay are published. Collectors acknowledge whatever comes, while the broker is killed
again and again. Each message must come when it is due and not before; twice only if its lease had run out.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from threading import Event, Thread
from time import monotonic, time_ns
from typing import NamedTuple, cast

from goqueue import Client, Consumer, GoQueueError, Message
from goqueue.client.options import Flush
from goqueue.clock import MS, SECOND
from tests.crash.phoenix import Phoenix, phoenix
from tests.crash.witness import Place

TOPIC = "work"
GROUP = "workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingConfig:
    """How much is pending, and for how long."""

    delays: int = 5_000
    in_flight: int = 2_500  # half of them for so long that they are settled by whoever has them
    retries: int = 50
    kills: int = 3
    holders: int = 3  # of each kind
    collectors: int = 2
    flush: str = "group"
    kept_s: float = 3_600.0  # lease and session of a holder: no machine is so slow that they run out
    short_s: float = 4.0
    collected_s: float = 2.0  # lease of a collector
    window_s: float = 5.0  # in which delays and retries fall due
    timeout_s: float = 120.0
    seed: int = 1


class Delivery(NamedTuple):
    """A message that came to a collector."""

    attempt: int
    at_ns: int
    deadline_ns: int


@dataclass
class Expected:
    """What is pending when the broker is killed."""

    due_ns: dict[Place, int] = field(default_factory=dict)  # not before
    counts: dict[Place, int] = field(default_factory=dict)  # deliveries before the collectors begin
    kept: set[Place] = field(default_factory=set)  # leased to holders, who will acknowledge them


class PendingReport(NamedTuple):
    """What came of it."""

    delivered: int
    again: int
    late_ms: list[float]

    def __str__(self) -> str:
        late = sorted(one for one in self.late_ms if one >= 0)
        told = f"{self.delivered:,} deliveries, {self.again} of them again; after the last kill came {len(late):,}"
        return f"{told}, {late[-1]:.0f} ms at most after they were due and the broker was back" if late else told


class Collector(Thread):
    """Acknowledges whatever comes."""

    def __init__(self, gq: Client, *, lease_s: float, session_s: float) -> None:
        super().__init__(daemon=True)
        self._gq = gq
        self._lease_s = lease_s
        self._session_s = session_s
        self._is_over = Event()
        self.deliveries: list[tuple[Place, Delivery]] = []
        self.acked: list[tuple[Place, int]] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        consumer = joined(self._gq, self._lease_s, self._session_s)
        try:
            while not self._is_over.is_set():
                try:
                    batch = consumer.poll(500, timeout="100ms")
                    self._note(batch)
                    consumer.ack(batch)
                except GoQueueError:
                    continue
                now_ns = time_ns()
                self.acked += [(place_of(one), now_ns) for one in batch]
        except BaseException as error:
            self.failure = error
        finally:
            consumer.close()

    def finish(self) -> None:
        self._is_over.set()
        self.join(timeout=60)
        assert not self.is_alive()
        assert self.failure is None, self.failure

    def _note(self, batch: Sequence[Message]) -> None:
        now_ns = time_ns()
        self.deliveries += [
            (place_of(one), Delivery(one.delivery_count, now_ns, one.origin.batch.deadline_ns)) for one in batch
        ]


def place_of(message: Message) -> Place:
    return message.partition, message.offset


def joined(gq: Client, lease_s: float, session_s: float) -> Consumer:
    """A member whose session does not end by itself: a loaded machine keeps heartbeats back for long."""
    return gq.consumer(
        TOPIC,
        group=GROUP,
        mode="shared",
        visibility=lease_s,
        session_timeout=session_s,
        max_in_flight=1_000_000,
        auto_extend=False,
    )


class Scene:
    """One run."""

    def __init__(self, config: PendingConfig, broker: Phoenix, gq: Client) -> None:
        self._config = config
        self._rng = Random(config.seed)
        self._broker = broker
        self._gq = gq
        self._expected = Expected()
        self._holding: list[tuple[Consumer, list[Message]]] = []

    def run(self) -> PendingReport:
        """Let it happen, and check it."""
        config, gq = self._config, self._gq
        gq.create_topic(
            TOPIC,
            partitions=3,
            flush=cast("Flush", config.flush),
            max_deliveries=10,
            backoff_initial="50ms",
            backoff_max="50ms",
        )
        gq.publish_many(TOPIC, [b"%d" % number for number in range(config.in_flight + config.retries)])
        self._lease(is_kept=True)
        self._refuse()
        self._lease(is_kept=False)
        self._delay()
        with self._collectors() as collectors:
            for _ in range(config.kills):
                Event().wait(self._rng.uniform(0.1, config.window_s / config.kills))
                self._broker.kill()
                self._broker.restart()
            restarted_ns = time_ns()
            last_ns = max(self._expected.due_ns.values())  # what is not due yet does not count as lag
            Event().wait(max(0, last_ns - time_ns()) / SECOND + 0.1)
            self._wait_until_left(len(self._expected.kept))
            for consumer, kept in self._holding:
                consumer.ack(kept)  # raises, if one of the leases did not survive
                consumer.close()
            self._wait_until_left(0)
        return self._check(collectors, restarted_ns)

    def _lease(self, *, is_kept: bool) -> None:
        """Hold half of what is to be in flight, for long or for a moment."""
        config, expected = self._config, self._expected
        left = config.in_flight // 2 if is_kept else config.in_flight - config.in_flight // 2
        for holders in range(config.holders, 0, -1):
            consumer = joined(self._gq, config.kept_s if is_kept else config.short_s, config.kept_s)
            held = self._polled(consumer, left // holders)
            left -= len(held)
            for one in held:
                expected.counts[place_of(one)] = 1
                if is_kept:
                    expected.kept.add(place_of(one))
                else:
                    expected.due_ns[place_of(one)] = one.origin.batch.deadline_ns
            self._holding.append((consumer, held if is_kept else []))

    def _refuse(self) -> None:
        """Send some back, to be tried at different times."""
        consumer = joined(self._gq, self._config.kept_s, self._config.kept_s)
        batch = self._polled(consumer, self._config.retries)
        for first in range(0, len(batch), 10):
            delay_s = self._rng.uniform(0.5, self._config.window_s)
            some = batch[first : first + 10]
            due_ns = time_ns() + int(delay_s * SECOND)
            consumer.nack(some, delay=delay_s)
            for one in some:
                self._expected.due_ns[place_of(one)] = due_ns
                self._expected.counts[place_of(one)] = 1
        self._holding.append((consumer, []))

    def _delay(self) -> None:
        """Publish messages for later."""
        config, begin_ns = self._config, time_ns()
        handles = []
        with self._gq.producer(batch_count=1_000, batch_bytes=256 * 1024) as producer:
            for number in range(config.delays):
                due_ns = begin_ns + int(self._rng.uniform(0.5, config.window_s) * SECOND)
                handles.append((due_ns, producer.send(TOPIC, b"d%d" % number, deliver_at=due_ns / SECOND)))
        for due_ns, handle in handles:
            published = handle.result()
            self._expected.due_ns[published.partition, published.offset] = due_ns

    def _polled(self, consumer: Consumer, count: int) -> list[Message]:
        held: list[Message] = []
        while len(held) < count:
            batch = consumer.poll(min(1_000, count - len(held)), timeout="5s")
            assert batch, "there was less than was published"
            held += batch
        return held

    @contextmanager
    def _collectors(self) -> Iterator[list[Collector]]:
        lease_s, session_s = self._config.collected_s, self._config.kept_s
        started = [Collector(self._gq, lease_s=lease_s, session_s=session_s) for _ in range(self._config.collectors)]
        for one in started:
            one.start()
        try:
            yield started
        finally:
            for one in started:
                one.finish()

    def _wait_until_left(self, count: int) -> None:
        """Until no more than so many messages are not done."""
        until_s = monotonic() + self._config.timeout_s
        while (left := sum(one.lag for one in self._gq.group_positions(GROUP))) > count:
            assert monotonic() < until_s, f"{left - count} messages did not come"
            Event().wait(0.02)

    def _check(self, collectors: list[Collector], restarted_ns: int) -> PendingReport:
        expected = self._expected
        deliveries: defaultdict[Place, list[Delivery]] = defaultdict(list)
        for one in collectors:
            assert one.failure is None
            for place, delivery in one.deliveries:
                deliveries[place].append(delivery)
        acked: dict[Place, int] = {}
        for one in collectors:
            for place, at_ns in one.acked:
                acked[place] = min(at_ns, acked.get(place, at_ns))
        assert not expected.kept & deliveries.keys(), "what somebody has was given to another one"
        assert deliveries.keys() == expected.due_ns.keys()
        late_ms = []
        for place, due_ns in expected.due_ns.items():
            came = sorted(deliveries[place], key=lambda one: one.attempt)
            told = f"{place}, due {due_ns}, acked {acked.get(place)}: {came}"
            assert came[0].at_ns >= due_ns, f"early: {told}"
            assert came[0].attempt > expected.counts.get(place, 0), told
            for before, again in pairwise(came):
                assert again.attempt > before.attempt, f"twice: {told}"
                assert again.at_ns >= before.deadline_ns, f"its lease had not run out: {told}"
            if place in acked:
                assert came[-1].at_ns <= acked[place], f"came again after its ack: {told}"
            late_ms.append((came[0].at_ns - max(due_ns, restarted_ns)) / MS)
        total = sum(map(len, deliveries.values()))
        return PendingReport(total, total - len(deliveries), late_ms)


def kill_while_pending(config: PendingConfig, directory: Path) -> PendingReport:
    """Run it with a broker of its own; raises what does not hold."""
    with phoenix(directory / "data") as broker, Client(broker.address) as gq:
        return Scene(config, broker, gq).run()
