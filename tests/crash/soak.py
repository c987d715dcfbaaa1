"""A soak: twenty consumers, some of them processes, do all that can be done to messages, and at the end all is done.

While messages are published, consumers acknowledge, refuse, reject, give back, extend, forget, leave, hang and are
killed; if that is asked for, the broker is killed as well. Then calm returns, and every message must come to its end:
acknowledged or dead, exactly once, with nothing left in flight or waiting.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from threading import Event, Thread
from time import monotonic
from typing import cast

from goqueue import Client, Message
from goqueue.client.options import Flush
from goqueue.clock import SECOND
from goqueue.delivery.dead_letter import ATTEMPTS, ORIGIN, REASON, REJECTED, parse_origin
from tests.crash.crowd import Crowd, Habits, crowd, is_poisoned, live
from tests.crash.phoenix import Phoenix, phoenix
from tests.crash.witness import Fact, Place, Testimony, has_delivery

TOPIC = "work"
GROUP = "workers"
LEAVES_MAX = 3
"""What a member has that leaves is delivered again at once, also if that was the last time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakConfig:
    """How much of everything."""

    messages: int = 10_000
    seconds: float = 4.0  # of publishing, and of chaos
    calm_s: float = 20.0  # until all must be done
    processes: int = 8
    threads: int = 12
    mode: str = "partitioned"
    partitions: int = 6
    keys: int = 0
    flush: str = "group"
    worker_kills: int = 8
    broker_kills: int = 0
    max_deliveries: int = 4
    visibility_s: float = 1.0
    delayed: float = 0.02  # share of messages with a delay
    batch_max: int = 100
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakReport:
    """What came of it."""

    messages: int
    dead: dict[str, int]
    facts: dict[str, int]
    unsure: int
    redelivered: int
    rebalances: int
    brokers: int
    chaos_s: float
    calm_s: float

    def __str__(self) -> str:
        facts = ", ".join(f"{count:,} {name}" for name, count in self.facts.items())
        return (
            f"{self.messages:,} messages: {facts}\n"
            f"dead letters {self.dead}, {self.redelivered:,} messages came more than once, "
            f"{self.unsure} ended with an ack nobody answered, {self.rebalances} rebalances, {self.brokers} brokers, "
            f"{self.chaos_s:.1f} s of chaos, {self.calm_s:.1f} s until all was done"
        )


class Soak:
    """One run."""

    def __init__(self, config: SoakConfig, directory: Path, broker: Phoenix, members: Crowd) -> None:
        self._config = config
        self._rng = Random(config.seed)
        self._directory = directory
        self._broker = broker
        self._members = members
        self._started = 0
        self._kills_are_over = Event()
        self._keys: dict[Place, bytes] = {}

    def run(self) -> SoakReport:
        """Let it happen, and check it."""
        config = self._config
        with Client(self._broker.address) as gq:
            gq.create_topic(
                TOPIC,
                partitions=config.partitions,
                flush=cast("Flush", config.flush),
                segment_bytes=1024 * 1024,
                max_deliveries=config.max_deliveries,
                visibility_timeout=f"{config.visibility_s}s",
                backoff_initial="50ms",
                backoff_max="200ms",
            )
            with self._threads(gq):
                for _ in range(config.processes):
                    self._start()
                began_s = monotonic()
                self._make_chaos(gq)
                self._say("calm")
                calm_s = monotonic()
                self._wait_until_done(gq)
                done_s = monotonic()
                self._say("stop")
            self._members.close()
            return self._check(gq, calm_s - began_s, done_s - calm_s)

    def _start(self, habits: Habits | None = None) -> None:
        self._started += 1
        if habits is not None and habits.is_static:
            habits = replace(habits, seed=self._rng.getrandbits(32))
        else:
            habits = self._habits(f"process-{self._started}", is_async=self._started % 2 == 1)
        self._members.start(habits)

    def _habits(self, name: str, *, is_async: bool = False) -> Habits:
        return Habits(
            name=name,
            seed=self._rng.getrandbits(32),
            address=self._broker.address,
            directory=str(self._directory),
            topic=TOPIC,
            group=GROUP,
            mode=self._config.mode,
            is_async=is_async,
            is_static=self._rng.random() < 0.3,
            visibility_s=self._config.visibility_s,
            batch_max=self._config.batch_max,
        )

    @contextmanager
    def _threads(self, gq: Client) -> Iterator[None]:
        habits = [self._habits(f"thread-{number}") for number in range(self._config.threads)]
        threads = [Thread(target=live, args=(one, gq), daemon=True) for one in habits]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._say("stop")
            for thread in threads:
                thread.join(timeout=60)
                assert not thread.is_alive()

    def _say(self, word: str) -> None:
        (self._directory / word).touch()

    def _make_chaos(self, gq: Client) -> None:
        config, rng = self._config, self._rng
        began_s = monotonic()
        publisher = Thread(target=self._publish, args=(gq, began_s), daemon=True)
        publisher.start()
        kills = [(rng.uniform(0.1, 1) * config.seconds, self._kill_worker) for _ in range(config.worker_kills)]
        kills += [(rng.uniform(0.1, 0.8) * config.seconds, self._kill_broker) for _ in range(config.broker_kills)]
        try:
            for at_s, kill in sorted(kills, key=lambda one: one[0]):
                Event().wait(max(0.0, began_s + at_s - monotonic()))
                kill()
        finally:
            self._kills_are_over.set()
        publisher.join(timeout=config.seconds + config.calm_s)
        assert not publisher.is_alive()

    def _kill_worker(self) -> None:
        self._start(self._members.kill(self._rng.choice(sorted(self._members.pids))))

    def _kill_broker(self) -> None:
        """Kill it in the middle of its work, and wait until the next one is at work."""
        self._broker.kill()
        self._broker.restart()
        before = {path: path.stat().st_size for path in self._notes()}
        until_s = monotonic() + self._config.calm_s
        while not any(has_delivery(path, skip_bytes=before.get(path, 0)) for path in self._notes()):
            assert monotonic() < until_s, "nobody went on"
            Event().wait(0.02)

    def _notes(self) -> list[Path]:
        return list(self._directory.glob("*.rows"))

    def _publish(self, gq: Client, began_s: float) -> None:
        """All messages, evenly over the time, but the last of them slowly until the last kill."""
        config, rng = self._config, Random(self._config.seed)
        steps = max(1, int(config.seconds / 0.05))
        with gq.producer(linger="2ms", batch_count=500) as producer:
            for step in range(steps):
                Event().wait(max(0.0, began_s + step * config.seconds / steps - monotonic()))
                for number in range(config.messages * step // steps, config.messages * (step + 1) // steps):
                    is_late = rng.random() < config.delayed and not config.keys  # one key, one order: as stored
                    delay = rng.uniform(0, 0.5) if is_late else None
                    key = b"key-%d" % rng.randrange(config.keys) if config.keys else None
                    priority = None if config.keys else rng.choice((None, None, 0, 1, 3, 4))
                    if config.broker_kills and number >= 0.8 * config.messages:
                        self._kills_are_over.wait(0.05)  # whoever comes after a kill shall have something to do
                    producer.send(TOPIC, b"%d" % number, key=key, delay=delay, priority=priority)
                producer.flush()

    def _wait_until_done(self, gq: Client) -> None:
        until_s = monotonic() + self._config.calm_s
        while any(one.lag for one in gq.group_positions(GROUP)):
            self._check_workers()
            if monotonic() > until_s:
                left = [one for one in gq.group_positions(GROUP) if one.lag]
                raise AssertionError(f"stuck: {left}\n{gq.describe_group(GROUP)}\n{gq.lanes(topic=TOPIC, group=GROUP)}")
            Event().wait(0.02)

    def _check_workers(self) -> None:
        for path in self._directory.glob("*.error"):
            raise AssertionError(path.read_text())

    def _check(self, gq: Client, chaos_s: float, calm_s: float) -> SoakReport:
        config = self._config
        self._check_workers()
        ends = gq.offsets(TOPIC)
        stored = list(gq.read(TOPIC))
        assert sorted(int(message.value) for message in stored) == list(range(config.messages))
        for position in gq.group_positions(GROUP):
            assert (position.offset, position.lag) == (position.end_offset, 0)
            assert position.end_offset == ends[position.partition]
        for lane in gq.lanes(topic=TOPIC, group=GROUP):
            assert not any((*lane.pending, *lane.ready, *lane.in_flight)), lane
        letters = list(gq.read(f"{TOPIC}.dlq"))
        testimony = Testimony(self._directory)
        dead = self._check_letters(letters, {(one.partition, one.offset): one for one in stored})
        rejected = {at for at, letter in zip(dead, letters, strict=True) if letter.headers[REASON] == REJECTED}
        testimony.check(
            ends,
            dead,
            rejected,
            max_deliveries=config.max_deliveries + LEAVES_MAX,
            lease_ns=int(config.visibility_s * SECOND),
        )
        if config.mode == "key-shared":
            testimony.check_order({(one.partition, one.offset): one.key or b"" for one in stored})
        reasons = [letter.headers[REASON] for letter in letters]
        buried = set(dead)
        assert {(one.partition, one.offset) for one in stored if is_poisoned(one)} <= buried
        return SoakReport(
            messages=len(stored),
            dead={reason: reasons.count(reason) for reason in sorted(set(reasons))},
            facts={fact.name.lower(): testimony.counts[fact] for fact in Fact},
            unsure=sum(not one.acked and place not in buried for place, one in testimony.stories.items()),
            redelivered=sum(len(one.deliveries) > 1 for one in testimony.stories.values()),
            rebalances=gq.rebalances(GROUP).total_rebalances,
            brokers=testimony.brokers,
            chaos_s=chaos_s,
            calm_s=calm_s,
        )

    def _check_letters(self, letters: list[Message], stored: dict[Place, Message]) -> list[Place]:
        """Dead letters are as they were, and died for a reason; where they came from."""
        places = []
        for letter in letters:
            origin = parse_origin(letter.headers[ORIGIN])
            assert origin
            place = origin[1:]
            was = stored[place]
            assert (letter.value, letter.key, letter.priority) == (was.value, was.key, was.priority)
            if letter.headers[REASON] != REJECTED:
                assert int(letter.headers[ATTEMPTS]) >= self._config.max_deliveries, letter.headers
            places.append(place)
        return places


def soak(config: SoakConfig, directory: Path) -> SoakReport:
    """Run it with a broker of its own; raises what does not hold."""
    notes = directory / "notes"
    notes.mkdir()
    with phoenix(directory / "data") as broker, crowd() as members:
        return Soak(config, notes, broker, members).run()
