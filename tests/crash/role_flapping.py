"""Partitions lose their leaders and get others at random, while everything that GoQueue can do is done to them.

Producers, transactions, delays, a schedule, the schema registry, followers, and groups in each mode work on an embedded
broker with ordinary clients. Meanwhile each partition is without a leader for a moment, again and again: those of the
topics, of their dead letters, and of all coordinators. Then calm returns, and nothing may be lost, doubled in the log,
early or stuck; and no client may have seen an error.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from random import Random
from threading import Event, Lock, Thread
from time import monotonic, time

from goqueue import Client, Delivered, Message, TopicNotFound, TransactionAborted
from goqueue.broker.coordination import PARTITION_COUNTS
from goqueue.testing import EmbeddedBroker

MODES = ("partitioned", "shared", "key-shared")
EARLY_S = 0.02  # the tolerance of the clock of the test against that of the broker
VISIBILITY_S = 10.0  # a busy machine keeps that
REJECTED = 17  # each message whose number is divisible by it is rejected
FAILED = 11  # and by this, fails at its first delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class FlappingConfig:
    """How much of everything."""

    seconds: float = 4.0
    calm_s: float = 60.0
    partitions: int = 3
    led_s: tuple[float, float] = (0.05, 0.5)  # how long a leader leads
    leaderless_s: tuple[float, float] = (0.0, 0.05)
    flush: str = "group"
    seed: int = 1


@dataclass(slots=True, kw_only=True)
class FlappingReport:
    """What came of it."""

    changes: int = 0
    published: int = 0
    delivered: int = 0
    redelivered: int = 0
    transactions: int = 0
    aborted: int = 0  # of these, because the coordinator changed
    dead: int = 0
    delayed: int = 0
    ticks: int = 0
    schemas: int = 0
    worst_pause_s: float = 0.0


@dataclass(slots=True)
class Ledger:
    """What the clients have been told, by all threads."""

    lock: Lock = field(default_factory=Lock)
    stored: set[str] = field(default_factory=set)
    transactions: int = 0
    seen: dict[str, Counter[str]] = field(default_factory=dict)  # by mode, how often each message came
    acked: dict[str, set[str]] = field(default_factory=dict)
    early: list[str] = field(default_factory=list)
    followed: list[tuple[int, int]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    progress_s: float = field(default_factory=monotonic)


class Flapping:
    """One run."""

    def __init__(self, broker: EmbeddedBroker, config: FlappingConfig) -> None:
        self._broker = broker
        self._config = config
        self._told = Ledger()
        self._over = Event()  # no more is published
        self._stop = Event()  # consumers stop
        self._report = FlappingReport()
        self._topics = [f"work-{mode}" for mode in MODES]

    def run(self) -> FlappingReport:
        """Let it happen, and check it."""
        config = self._config
        with Client(self._broker.address) as gq:
            for topic in self._topics:
                gq.create_topic(
                    topic,
                    partitions=config.partitions,
                    flush=config.flush,  # type: ignore[arg-type]
                    visibility_timeout=f"{VISIBILITY_S}s",
                    backoff_initial="50ms",
                    max_deliveries=10,
                )
            gq.create_topic("ticks", partitions=1)
            gq.schedule("ticks", b"tick", name="often", every="1s")
            makers: list[Callable[[], None]] = [self._produce, self._publish_singly, self._transact, self._delay]
            makers.append(self._register)
            takers = [lambda mode=mode: self._consume(mode) for mode in MODES for _ in range(2)]
            with self._threads([self._follow, *takers], self._stop), self._threads(makers, self._over):
                self._flap()
                self._over.set()
            # The threads of makers have ended; the consumers go on until nothing is left.
            self._check(gq)
        return self._report

    # --- threads -------------------------------------------------------------------------------

    @contextmanager
    def _threads(self, targets: list[Callable[[], None]], stop: Event) -> Iterator[None]:
        threads = [Thread(target=self._guarded, args=(target,)) for target in targets]
        for thread in threads:
            thread.start()
        try:
            yield
            if stop is self._stop:
                self._wait_until_done()
        finally:
            stop.set()
            for thread in threads:
                thread.join(timeout=60)
            assert not any(thread.is_alive() for thread in threads), "a client is stuck"

    def _guarded(self, target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:
            self._told.errors.append(f"{target}: {type(error).__name__}: {error}")

    # --- what makes messages -------------------------------------------------------------------

    def _produce(self) -> None:
        """Batches of an idempotent producer."""
        rng, number = Random(self._config.seed), 0
        with Client(self._broker.address) as gq, gq.producer(linger="2ms") as producer:
            while not self._over.is_set():
                handles = []
                for _ in range(50):
                    number += 1
                    topic, value = rng.choice(self._topics), f"batch-{number}"
                    handles.append((value, producer.send(topic, value, key=f"key-{number % 20}")))
                producer.flush()
                for value, handle in handles:
                    handle.result(timeout=30)
                    self._stored(value)
                self._over.wait(0.02)

    def _publish_singly(self) -> None:
        number = 0
        with Client(self._broker.address) as gq:
            while not self._over.is_set():
                for topic in self._topics:
                    number += 1
                    began_s = monotonic()
                    gq.publish(topic, f"single-{number}", key=f"key-{number % 20}")
                    self._report.worst_pause_s = max(self._report.worst_pause_s, monotonic() - began_s)
                    self._stored(f"single-{number}")
                self._over.wait(0.01)

    def _transact(self) -> None:
        number = 0
        with Client(self._broker.address) as gq:
            while not self._over.is_set():
                number += 1
                pair = (f"tx-{number}-a", f"tx-{number}-b")
                is_committed = number % 3 != 0
                try:
                    with gq.transaction("flapping") as transaction:
                        for value, topic in zip(pair, self._topics, strict=False):
                            transaction.publish(topic, value)
                        if not is_committed:
                            raise _Abort
                except _Abort:
                    pass
                except TransactionAborted:  # it was open when its coordinator lost its leader; nothing of it is stored
                    self._report.aborted += 1
                else:
                    for value in pair:
                        self._stored(value)
                self._told.transactions = number
                self._over.wait(0.02)

    def _delay(self) -> None:
        rng, number = Random(self._config.seed + 1), 0
        with Client(self._broker.address) as gq:
            while not self._over.is_set():
                number += 1
                delay_s = rng.uniform(0.1, 1.5)
                value = json.dumps({"delayed": number, "not_before": time() + delay_s})
                gq.publish(rng.choice(self._topics), value, delay=delay_s)
                self._stored(value)
                self._over.wait(0.03)

    def _register(self) -> None:
        """Versions of a schema, one after the other."""
        with Client(self._broker.address) as gq:
            while not self._over.is_set():
                schema = {"type": "string", "description": f"schema {len(self._told.versions) + 1}"}
                self._told.versions.append(gq.register_schema("changing", schema).version)
                self._over.wait(0.05)

    def _stored(self, value: str) -> None:
        with self._told.lock:
            self._told.stored.add(value)

    # --- what takes them -----------------------------------------------------------------------

    def _consume(self, mode: str) -> None:
        seen = self._told.seen.setdefault(mode, Counter())
        acked = self._told.acked.setdefault(mode, set())
        with (
            Client(self._broker.address) as gq,
            gq.consumer(f"work-{mode}", group=f"group-{mode}", mode=mode) as consumer,  # type: ignore[arg-type]
        ):
            while not self._stop.is_set():
                for message in consumer.poll(50, timeout="200ms"):
                    value = message.text()
                    with self._told.lock:
                        seen[value] += 1
                    self._look_at_time(value)
                    self._settle(message, value)
                    with self._told.lock:
                        acked.add(value)
                    self._told.progress_s = monotonic()

    def _look_at_time(self, value: str) -> None:
        if value.startswith("{") and time() < json.loads(value)["not_before"] - EARLY_S:
            self._told.early.append(value)

    def _settle(self, message: Delivered, value: str) -> None:
        if is_rejected(value):
            message.reject(reason="divisible")
        elif number_of(value) % FAILED == 0 and message.delivery_count == 1:
            message.nack(delay="50ms")
        else:
            message.ack()

    def _follow(self) -> None:
        with Client(self._broker.address) as gq:
            for message in gq.follow("work-shared", start="earliest"):
                self._told.followed.append((message.partition, message.offset))
                if message.text() == "the end":
                    return

    # --- chaos ---------------------------------------------------------------------------------

    def _flap(self) -> None:
        """Each partition loses its leader at random times, independently of the others."""
        rng, config = Random(self._config.seed + 2), self._config
        counts = {**dict.fromkeys(self._topics, config.partitions), "ticks": 1, **PARTITION_COUNTS}
        counts |= {f"{topic}.dlq": config.partitions for topic in self._topics}
        places = [(topic, number) for topic, count in counts.items() for number in range(count)]
        due = [(monotonic() + rng.uniform(*config.led_s), place) for place in places]
        heapify(due)
        leaderless: set[tuple[str, int]] = set()
        end_s = monotonic() + config.seconds
        while monotonic() < end_s or leaderless:
            at_s, place = heappop(due)
            self._over.wait(max(0.0, at_s - monotonic()))
            span_s = config.led_s
            if place in leaderless:
                leaderless.remove(place)
                self._broker.lead(*place)
                self._report.changes += 1
            elif monotonic() < end_s and self._resigned(place):
                leaderless.add(place)
                span_s = config.leaderless_s
            heappush(due, (monotonic() + rng.uniform(*span_s), place))

    def _resigned(self, place: tuple[str, int]) -> bool:
        try:
            self._broker.resign(*place)
        except TopicNotFound:  # an internal topic that no client has used yet, or nothing is dead yet
            return False
        return True

    # --- the end -------------------------------------------------------------------------------

    def _wait_until_done(self) -> None:
        """Until every group has nothing left, or nothing moves any more."""
        self._told.progress_s = monotonic()
        with Client(self._broker.address) as gq:
            for number in range(self._config.partitions):
                gq.publish("work-shared", "the end", partition=number)
            while any(gq.delayed(topic) for topic in self._topics) or any(
                gq.describe_group(f"group-{mode}").lag for mode in MODES
            ):
                stuck_s = monotonic() - self._told.progress_s
                assert stuck_s < self._config.calm_s, f"stuck; errors: {self._told.errors}"
                Event().wait(0.1)

    def _check(self, gq: Client) -> None:
        told, report = self._told, self._report
        assert not told.errors, told.errors
        assert not told.early, f"delivered too early: {told.early[:3]}"
        log = {topic: [message.text() for message in gq.read(topic)] for topic in self._topics}
        in_log = Counter(value for values in log.values() for value in values if value != "the end")
        doubled = [value for value, count in in_log.items() if count > 1]
        assert not doubled, f"stored twice: {doubled[:5]}"
        lost, extra = sorted(told.stored - set(in_log)), sorted(set(in_log) - told.stored)
        assert not lost, f"lost: {lost[:5]}"
        assert not extra, f"stored without an answer, or of an aborted transaction: {extra[:5]}"
        dead = Counter(letter.text() for mode in MODES for letter in self._letters(gq, f"work-{mode}"))
        assert all(count == 1 for count in dead.values()), f"dead-lettered twice: {dead.most_common(3)}"
        for mode in MODES:
            wanted = {value for value in log[f"work-{mode}"] if value != "the end"}
            missing = wanted - told.acked.get(mode, set())
            assert not missing, f"never delivered to group-{mode}: {sorted(missing)[:5]}"
        rejected = {value for value in in_log if is_rejected(value)}
        assert set(dead) == rejected, f"dead: {sorted(set(dead) ^ rejected)[:5]}"
        self._check_followed(gq)
        self._check_schedule(gq)
        self._check_schemas(gq)
        report.published, report.dead = len(in_log), len(dead)
        report.transactions = told.transactions
        report.delivered = sum(sum(seen.values()) for seen in told.seen.values())
        report.redelivered = report.delivered - sum(len(seen) for seen in told.seen.values())
        report.delayed = sum(value.startswith("{") for value in in_log)

    def _letters(self, gq: Client, topic: str) -> list[Message]:
        return list(gq.read(f"{topic}.dlq")) if f"{topic}.dlq" in gq.topics() else []

    def _check_followed(self, gq: Client) -> None:
        """The follower saw every message of a partition once and in order, up to the last one that it saw.

        It passes delayed messages that are not due, and it stops at the first of the messages that end the topic.
        """
        by_partition: dict[int, list[int]] = {}
        for partition, offset in self._told.followed:
            by_partition.setdefault(partition, []).append(offset)
        assert by_partition, "the follower saw nothing"
        for partition, offsets in by_partition.items():
            stored = {message.offset: message.text() for message in gq.read("work-shared", partition=partition)}
            wanted = {offset for offset, text in stored.items() if offset <= offsets[-1] and not text.startswith("{")}
            assert offsets == sorted(set(offsets)), f"followed twice or out of order in partition {partition}"
            assert wanted <= set(offsets) <= set(stored), f"not followed: {sorted(wanted - set(offsets))[:5]}"

    def _check_schedule(self, gq: Client) -> None:
        """Each run was published once, and none before its time."""
        gq.pause_schedule("ticks", "often")
        info, end_s = gq.describe_schedule("ticks", "often"), monotonic() + self._config.calm_s
        while info.runs < len(list(gq.read("ticks"))) and monotonic() < end_s:  # the last run is not noted yet
            Event().wait(0.1)
            info = gq.describe_schedule("ticks", "often")
        offsets = [message.offset for message in gq.read("ticks")]
        assert info.runs == len(offsets) > 0
        assert sorted(run.offset for run in info.history) == offsets[-len(info.history) :]
        assert all(run.published_at_ns >= run.due_at_ns for run in info.history), "published too early"
        assert len({run.due_at_ns for run in info.history}) == len(info.history), "published twice"
        self._report.ticks = len(offsets)

    def _check_schemas(self, gq: Client) -> None:
        """Every version that was registered is there; one that is registered again after an error is the same one."""
        versions = self._told.versions
        assert versions == list(range(1, len(versions) + 1))
        for version in versions:
            assert f'"schema {version}"' in gq.schema(subject="changing", version=version).schema
        self._report.schemas = len(versions)


class _Abort(Exception):
    pass


def number_of(value: str) -> int:
    """The number in the value of a batched message."""
    return int(value.rpartition("-")[2]) if value.startswith("batch") else 1


def is_rejected(value: str) -> bool:
    """Whether consumers reject the message."""
    return number_of(value) % REJECTED == 0


def flap(config: FlappingConfig) -> FlappingReport:
    """One run on a broker of its own."""
    with EmbeddedBroker() as broker:
        return Flapping(broker, config).run()
