"""A world for the coordinator: partitions, a ledger of positions and acks, a journal; all of them lose their tails.

Whatever takes time is a generator that yields after every single effect, so a test may stop anywhere, mix several of
them, and let the world crash. Of what was not synced a crash keeps any number of the first entries, log by log.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from pyroaring import BitMap64

from goqueue.clock import MS
from goqueue.transactions.coordinator import BeginResult, InitResult, TransactionCoordinator
from goqueue.transactions.decisions import Busy, DecidedAcks, DecidedPosition, Decision, DecisionPart
from goqueue.transactions.limits import TransactionLimits
from goqueue.transactions.states import Verdict
from goqueue.transactions.transaction import StagedTransaction
from goqueue.wire.transaction_reports import BegunTransaction, ProducerSession, TransactionOutcome, TransactionOwner

WALL_NS = 1_700_000_000 * 10**9
TOPIC = "orders"
TOPIC_ID = "id-of-orders"
TIMEOUT_MS = 1_000


class Log:
    """Entries, of which the first `durable_count` survive a crash."""

    def __init__(self) -> None:
        self.entries: list[tuple[object, ...]] = []
        self.durable_count = 0

    @property
    def tail_count(self) -> int:
        return len(self.entries) - self.durable_count

    def append(self, *entry: object) -> None:
        self.entries.append(entry)

    def sync(self) -> None:
        self.durable_count = len(self.entries)

    def crash(self, kept_count: int) -> None:
        del self.entries[self.durable_count + kept_count :]
        self.sync()


class Partition(Log):
    """Records and markers. A marker decides what is open of its transaction at that moment, and nothing else."""

    def replayed(self) -> tuple[list[object], dict[tuple[int, int], list[object]]]:
        """What a reader sees, and what is open."""
        visible: list[object] = []
        open_ones: dict[tuple[int, int], list[object]] = {}
        for kind, producer_id, number, value in self.entries:
            key = (producer_id, number)
            if kind == "record":
                open_ones.setdefault(key, []).append(value)  # type: ignore[arg-type]
            else:
                ended = open_ones.pop(key, [])  # type: ignore[arg-type]
                visible += ended if value else []
        return visible, open_ones


class Crashed(NamedTuple):
    """How much of each tail is kept."""

    journal: int
    partitions: tuple[int, ...]
    ledger: int


@dataclass(slots=True)
class Call:
    """What somebody asked for, and what it was told; None: nothing yet."""

    steps: Generator[None, None, None]
    answer: object = None
    is_over: bool = False


class World:
    """What a broker would be to the coordinator."""

    def __init__(
        self, *, partitions: int = 3, limits: TransactionLimits | None = None, started_at_ns: int = WALL_NS
    ) -> None:
        self.limits = limits
        self.started_at_ns = started_at_ns
        self.now_ns = 0
        self.journal = Log()
        self.partitions = [Partition() for _ in range(partitions)]
        self.ledger = Log()
        self.core = TransactionCoordinator(limits)
        self.calls: list[Call] = []
        self.new_id = 100

    @property
    def wall_ns(self) -> int:
        return self.started_at_ns + self.now_ns

    # What is there

    def facts(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for key, value in self.journal.entries:
            found.pop(key, None)  # type: ignore[call-overload]
            if value is not None:
                found[key] = value  # type: ignore[index, assignment]
        return found

    def visible(self, partition: int) -> list[object]:
        return self.partitions[partition].replayed()[0]

    def positions(self) -> dict[object, object]:
        return {entry[1]: entry[2] for entry in self.ledger.entries if entry[0] == "position"}

    def acked(self) -> set[object]:
        return {entry[1] for entry in self.ledger.entries if entry[0] == "ack"}

    # What a broker does

    def put(self, facts: dict[bytes, bytes | None]) -> None:
        for key, value in facts.items():
            self.journal.append(key, value)

    def call(self, steps: Callable[[Call], Generator[None, None, None]]) -> Call:
        call = Call(None)  # type: ignore[arg-type]
        call.steps = self._with_waiting(call, steps)
        self.calls.append(call)
        return call

    def _with_waiting(
        self, call: Call, steps: Callable[[Call], Generator[None, None, None]]
    ) -> Generator[None, None, None]:
        while True:
            try:
                yield from steps(call)
                return
            except Busy as busy:
                waited_for = busy.decision
            while waited_for.stage.name in ("ASKED", "DECIDED"):
                yield

    def step(self, call: Call) -> None:
        """One effect more; whatever it raises is its answer."""
        try:
            next(call.steps)
        except StopIteration:
            call.is_over = True
        except Exception as error:
            call.answer = call.answer or error
            call.is_over = True
        if call.is_over and call in self.calls:
            self.calls.remove(call)

    def finish(self, call: Call) -> object:
        """All of it; others that it waits for go on, too."""
        while not call.is_over:
            for one in list(self.calls):
                self.step(one)
        if isinstance(call.answer, Exception):
            raise call.answer
        return call.answer

    def settle(self) -> None:
        while self.calls:
            self.finish(self.calls[0])

    def init(self, transactional_id: str | None, *, timeout_ms: int = TIMEOUT_MS) -> Call:
        def steps(call: Call) -> Generator[None, None, None]:
            self.new_id += 1
            initiated: InitResult = self.core.init(
                transactional_id, timeout_ms=timeout_ms, new_id=self.new_id, wall_ns=self.wall_ns
            )
            self.put(initiated.facts)
            yield
            if initiated.abort:
                yield from self.carry_out(initiated.abort)
            self.journal.sync()
            call.answer = initiated.session
            yield

        return self.call(steps)

    def begin(self, transactional_id: str, session: ProducerSession, *, marker: str | None = None) -> Call:
        def steps(call: Call) -> Generator[None, None, None]:
            begun: BeginResult = self.core.begin(
                transactional_id,
                session.producer_id,
                session.epoch,
                marker=marker,
                now_ns=self.now_ns,
                wall_ns=self.wall_ns,
            )
            self.put(begun.facts)
            call.answer = begun.answer
            yield

        return self.call(steps)

    def publish(self, begun: BegunTransaction, partition: int, value: object) -> Call:
        def steps(call: Call) -> Generator[None, None, None]:
            transaction = self.core.open.check_publish(begun.producer_id, begun.epoch, begun.number)
            transaction.add_partition(TOPIC, TOPIC_ID, partition, wall_ns=self.wall_ns)
            self.partitions[partition].append("record", begun.producer_id, begun.number, value)
            yield
            self.journal.sync()  # what was begun is known from here on
            call.answer = value
            yield

        return self.call(steps)

    def add_position(self, begun: BegunTransaction, group: str, offset: int) -> Call:
        def steps(call: Call) -> Generator[None, None, None]:
            transaction: StagedTransaction = self.core.open.of_producer(begun.producer_id, begun.epoch)
            transaction.add_position(DecidedPosition(group, "in", "id", 0, offset), wall_ns=self.wall_ns)
            self.journal.sync()
            call.answer = offset
            yield

        return self.call(steps)

    def add_acks(self, begun: BegunTransaction, group: str, offsets: Sequence[int]) -> Call:
        def steps(call: Call) -> Generator[None, None, None]:
            transaction: StagedTransaction = self.core.open.of_producer(begun.producer_id, begun.epoch)
            transaction.add_acks(DecidedAcks(group, "in", "id", 0, BitMap64(offsets)), wall_ns=self.wall_ns)
            self.journal.sync()
            call.answer = offsets
            yield

        return self.call(steps)

    def commit(
        self, owner: TransactionOwner, together: Sequence[TransactionOwner] = (), *, marker: str | None = None
    ) -> Call:
        def steps(call: Call) -> Generator[None, None, None]:
            yield from self.ending(self.core.commit(owner, together, marker=marker, wall_ns=self.wall_ns), call)

        return self.call(steps)

    def abort(self, owner: TransactionOwner) -> Call:
        def steps(call: Call) -> Generator[None, None, None]:
            yield from self.ending(self.core.abort(owner, wall_ns=self.wall_ns), call)

        return self.call(steps)

    def abort_by_id(self, transaction_id: str) -> Call:
        def steps(call: Call) -> Generator[None, None, None]:
            yield from self.ending(self.core.abort_by_id(transaction_id), call)

        return self.call(steps)

    def tick(self, duration_ms: int) -> None:
        self.now_ns += duration_ms * MS
        for decision in self.core.tick(now_ns=self.now_ns, wall_ns=self.wall_ns):
            self.call(lambda call, decision=decision: self.ending(decision, call))  # type: ignore[misc]
        self.put(self.core.take_facts())

    def ending(self, decided: Decision | TransactionOutcome, call: Call) -> Generator[None, None, None]:
        if isinstance(decided, TransactionOutcome):
            call.answer = decided
            return
        if decided.is_commit:
            for partition in self.touched(decided.parts):
                partition.sync()
                yield
            self.put(dict(decided.facts))
            yield
            self.journal.sync()
            self.core.decided(decided)
            yield
        yield from self.carry_out(decided)
        call.answer = decided.answer
        yield
        for log in (*self.touched(decided.parts), self.ledger):
            log.sync()
            yield
        self.put(self.core.settled(decided))
        yield

    def touched(self, parts: Sequence[DecisionPart]) -> list[Partition]:
        return [
            self.partitions[number] for number in sorted({one.partition for part in parts for one in part.partitions})
        ]

    def carry_out(self, decision: Decision) -> Generator[None, None, None]:
        for part in decision.parts:
            for one in part.partitions:
                self.partitions[one.partition].append("marker", part.producer_id, part.number, decision.is_commit)
                yield
            if decision.is_commit:
                for position in part.positions:
                    self.ledger.append("position", position.group, position.offset)
                    yield
                for acks in part.acks:
                    for offset in acks.offsets:
                        self.ledger.append("ack", (acks.group, offset))
                    yield
        self.core.completed(decision, now_ns=self.now_ns, wall_ns=self.wall_ns)

    # How it ends, and begins again

    def crash(self, kept: Crashed) -> None:
        """Everything in memory is gone, and of each log what was not synced, but for the first few entries."""
        for call in self.calls:
            call.is_over = True
        self.calls = []
        self.journal.crash(kept.journal)
        self.ledger.crash(kept.ledger)
        for partition, count in zip(self.partitions, kept.partitions, strict=True):
            partition.crash(count)
        self.now_ns += 5 * MS
        self.core = TransactionCoordinator(self.limits)

    def recover(self) -> Generator[None, None, None]:
        """What a broker does at its start, effect by effect."""
        recovery = self.core.load(self.facts(), now_ns=self.now_ns, wall_ns=self.wall_ns)
        for decision in recovery.decisions:
            self.core.decided(decision)
            yield from self.carry_out(decision)
        for partition in self.partitions:
            for producer_id, number in list(partition.replayed()[1]):
                verdict = self.core.verdict(producer_id, number)
                assert verdict is not Verdict.OPEN
                partition.append("marker", producer_id, number, verdict is Verdict.COMMIT)
                yield
        for log in (*self.partitions, self.ledger):
            log.sync()
            yield
        for decision in recovery.decisions:
            self.put(self.core.settled(decision))
            yield
        self.put(self.core.take_facts())
        yield

    def ways_to_crash(self) -> Iterator[Crashed]:
        """Every prefix of each tail, in every mixture."""
        logs = (self.journal, self.ledger, *self.partitions)
        for journal, ledger, *partitions in product(*(range(log.tail_count + 1) for log in logs)):
            yield Crashed(journal, tuple(partitions), ledger)
