"""Producers, zombies, timeouts, operators and crashes in any order: what was told is true, and nothing is half done."""

from dataclasses import dataclass, field

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyroaring import BitMap64

from goqueue.clock import MS
from goqueue.errors import GoQueueError, ProducerFenced
from goqueue.transactions.facts import SavedDecision
from goqueue.wire.transaction_reports import BegunTransaction, ProducerSession, TransactionOutcome, TransactionOwner
from tests.transactions.world import TIMEOUT_MS, Call, Crashed, World

INSTANCES = {"a1": "a", "a2": "a", "b1": "b", "c1": "c"}
instances = st.sampled_from(sorted(INSTANCES))
markers = st.sampled_from([None, None, "m1", "m2"])
PARTITIONS = 3


@dataclass
class Piece:
    """One transaction: what is in it, and what its owner was told of it."""

    name: str
    begun: BegunTransaction
    begun_ns: int
    values: list[tuple[int, str]] = field(default_factory=list)
    has_position: bool = False
    has_acks: bool = False
    is_known: bool = False  # something in it was answered, so the coordinator does not forget it
    told: str | None = None

    @property
    def key(self) -> tuple[int, int]:
        return (self.begun.producer_id, self.begun.number)


@dataclass
class Asked:
    """A commit or an abort that is under way."""

    call: Call
    pieces: list[Piece]
    marker: str | None
    is_commit: bool


@dataclass
class Instance:
    """A process that holds a transactional id, or believes so."""

    transactional_id: str
    session: ProducerSession | None = None
    piece: Piece | None = None
    is_unsure: bool = False  # something it did was not answered

    def owner(self, *, says_number: bool) -> TransactionOwner:
        assert self.session
        number = self.piece.begun.number if says_number and self.piece else 0
        return TransactionOwner(self.transactional_id, self.session.producer_id, self.session.epoch, number)


class Transactions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(partitions=PARTITIONS)
        self.instances = {name: Instance(transactional_id) for name, transactional_id in INSTANCES.items()}
        self.epochs: dict[str, int] = {}
        self.pieces: list[Piece] = []
        self.asked: list[Asked] = []
        self.numbers: dict[int, int] = {}

    # What the instances do

    def attempt(self, instance: Instance, call: Call, *, steps: int | None = None) -> object | None:
        """What was answered; None if it was refused, which a zombie always is."""
        assert instance.session
        is_zombie = instance.session.epoch < self.epochs[instance.transactional_id]
        try:
            if steps is None:
                answer = self.world.finish(call)
            else:
                for _ in range(steps):
                    self.world.step(call)
                if isinstance(call.answer, Exception):
                    raise call.answer
                answer = call
        except ProducerFenced:
            assert is_zombie
            return None
        except GoQueueError:
            assert not is_zombie
            return None
        assert not is_zombie
        return answer

    @rule(name=instances)
    def init(self, name: str) -> None:
        instance = self.instances[name]
        session = self.world.finish(self.world.init(instance.transactional_id))
        assert isinstance(session, ProducerSession)
        assert session.epoch > self.epochs.get(instance.transactional_id, -1)
        self.epochs[instance.transactional_id] = session.epoch
        instance.session, instance.piece, instance.is_unsure = session, None, False

    @rule(name=instances, marker=markers)
    def begin(self, name: str, marker: str | None) -> None:
        instance = self.instances[name]
        if not instance.session:
            return
        begun = self.attempt(instance, self.world.begin(instance.transactional_id, instance.session, marker=marker))
        if not isinstance(begun, BegunTransaction):
            return
        if begun.already_committed:
            assert self.decisions_with(marker)
            return
        assert begun.number > self.numbers.get(begun.producer_id, 0)
        self.numbers[begun.producer_id] = begun.number
        instance.piece = Piece(f"{instance.transactional_id}{begun.number}", begun, self.world.now_ns)
        instance.is_unsure = False
        self.pieces.append(instance.piece)

    @rule(name=instances, partition=st.integers(0, PARTITIONS - 1), steps=st.sampled_from([1, 2, 2, 2]))
    def publish(self, name: str, partition: int, steps: int) -> None:
        instance = self.instances[name]
        piece = instance.piece
        if not piece:
            return
        value = f"{piece.name}/{len(piece.values)}"
        if self.attempt(instance, self.world.publish(piece.begun, partition, value), steps=steps):
            piece.values.append((partition, value))
            piece.is_known |= steps > 1
            instance.is_unsure |= steps == 1

    @rule(name=instances)
    def add_position(self, name: str) -> None:
        instance = self.instances[name]
        piece = instance.piece
        if piece and self.attempt(instance, self.world.add_position(piece.begun, piece.name, 9)) is not None:
            piece.has_position = piece.is_known = True

    @rule(name=instances)
    def add_acks(self, name: str) -> None:
        instance = self.instances[name]
        piece = instance.piece
        if piece and self.attempt(instance, self.world.add_acks(piece.begun, piece.name, [4])) is not None:
            piece.has_acks = piece.is_known = True

    @rule(name=instances, says_number=st.booleans(), marker=markers, others=st.sets(instances))
    def commit(self, name: str, says_number: bool, marker: str | None, others: set[str]) -> None:
        chosen = [self.instances[one] for one in (name, *sorted(others - {name}))]
        chosen = [one for one in chosen if one.session and one.piece and not one.is_unsure]
        if not chosen:
            return
        owner, *together = (one.owner(says_number=says_number) for one in chosen)
        pieces = [one.piece for one in chosen if one.piece]
        self.ask(self.world.commit(owner, together, marker=marker), pieces, marker, is_commit=True)

    @rule(name=instances, says_number=st.booleans())
    def abort(self, name: str, says_number: bool) -> None:
        instance = self.instances[name]
        if instance.session and instance.piece:
            call = self.world.abort(instance.owner(says_number=says_number))
            self.ask(call, [instance.piece], None, is_commit=False)

    def ask(self, call: Call, pieces: list[Piece], marker: str | None, *, is_commit: bool) -> None:
        self.asked.append(Asked(call, pieces, marker, is_commit))
        self.world.step(call)
        self.listen()

    # What happens to them

    @precondition(lambda self: self.world.calls)
    @rule(data=st.data(), count=st.integers(1, 5))
    def go_on(self, data: st.DataObject, count: int) -> None:
        call = data.draw(st.sampled_from(self.world.calls))
        for _ in range(count):
            self.world.step(call)
        self.listen()

    @rule()
    def go_on_to_the_end(self) -> None:
        self.world.settle()

    @rule(duration_ms=st.sampled_from([1, 100, TIMEOUT_MS]))
    def wait(self, duration_ms: int) -> None:
        self.world.tick(duration_ms)

    @precondition(lambda self: self.world.core.list())
    @rule(data=st.data())
    def end_by_admin(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from([one.transaction_id for one in self.world.core.list()]))
        self.world.step(self.world.abort_by_id(chosen))

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        def some_of(count: int) -> int:
            return data.draw(st.integers(0, count))

        self.listen()
        world = self.world
        tails = tuple(some_of(partition.tail_count) for partition in world.partitions)
        world.crash(Crashed(some_of(world.journal.tail_count), tails, some_of(world.ledger.tail_count)))
        for _ in world.recover():
            pass
        assert world.core.list() == []
        self.asked = []
        for instance in self.instances.values():
            instance.is_unsure |= bool(instance.piece and not instance.piece.is_known)

    def listen(self) -> None:
        """Hear the answers that have come."""
        for asked in [one for one in self.asked if one.call.answer is not None]:
            self.asked.remove(asked)
            answer = asked.call.answer
            if not isinstance(answer, TransactionOutcome):
                assert isinstance(answer, GoQueueError), answer
                continue
            assert answer.status == ("committed" if asked.is_commit else "aborted")
            if asked.marker:
                assert self.decisions_with(asked.marker)
                if answer.already:
                    continue  # it was done before, perhaps by others
            for piece in asked.pieces:
                assert piece.told in (None, answer.status)
                piece.told = answer.status

    # What must hold

    def is_visible(self, piece: Piece) -> bool:
        found = {self.has_value(partition, value) for partition, value in piece.values}
        if piece.has_position:
            found.add(piece.name in self.world.positions())
        if piece.has_acks:
            found.add((piece.name, 4) in self.world.acked())
        assert len(found) < 2 or self.world.calls
        return True in found

    def has_value(self, partition: int, value: str) -> bool:
        seen = self.world.visible(partition)
        assert seen.count(value) < 2
        return value in seen

    def is_empty(self, piece: Piece) -> bool:
        return not piece.values and not piece.has_position and not piece.has_acks

    @invariant()
    def what_was_told_is_so(self) -> None:
        self.listen()
        for piece in self.pieces:
            if piece.told == "committed" and not self.is_empty(piece):
                assert self.is_visible(piece)
                assert all(self.has_value(*one) for one in piece.values)
            if piece.told == "aborted":
                assert not self.is_visible(piece)

    @invariant()
    def at_rest_nothing_is_half_done(self) -> None:
        if self.world.calls:
            return
        open_ids = {one.transaction_id for one in self.world.core.list()}
        open_keys = {piece.key for piece in self.pieces if piece.begun.transaction_id in open_ids}
        for partition in self.world.partitions:
            assert set(partition.replayed()[1]) <= open_keys
        for piece in self.pieces:
            is_visible = self.is_visible(piece)  # which sees to it that it is so everywhere, or nowhere
            if piece.key in open_keys:
                assert not is_visible
                assert self.world.now_ns - piece.begun_ns < TIMEOUT_MS * MS

    def decisions(self) -> dict[bytes, SavedDecision]:
        """Every commit that was ever decided."""
        return {
            key: msgspec.msgpack.decode(raw, type=SavedDecision, dec_hook=lambda _, raw: BitMap64.deserialize(raw))
            for key, raw in self.world.journal.entries
            if isinstance(key, bytes) and key.startswith(b"d:") and isinstance(raw, bytes)
        }

    def decisions_with(self, marker: str | None) -> int:
        return sum(decision.marker == marker for decision in self.decisions().values())

    @invariant()
    def what_was_decided_is_done_and_nothing_else(self) -> None:
        if self.world.calls:
            return
        decisions = self.decisions().values()
        decided = {(part.producer_id, part.number) for decision in decisions for part in decision.parts}
        for piece in self.pieces:
            assert self.is_visible(piece) == (piece.key in decided and not self.is_empty(piece))
        for marker in ("m1", "m2"):
            assert self.decisions_with(marker) < 2

    @invariant()
    def the_numbers_agree(self) -> None:
        stats = self.world.core.stats()
        states = [one.state for one in self.world.core.list()]
        for state in ("Ongoing", "PrepareCommit", "PrepareAbort"):
            assert stats.by_state[state] == states.count(state)
        assert stats.active_transactions == len(states)
        assert sum(stats.by_state.values()) == stats.producers == len(self.epochs)


Transactions.TestCase.settings = settings(max_examples=50, stateful_step_count=35)
TestTransactions = Transactions.TestCase
