"""Replicas of one partition under everything that may happen: what was committed once stays, everywhere, for ever.

Three replicas on disks of their own, connected by function calls. A controller of a few lines decides who leads and who
is in sync; replicas hear of it late or not at all. Fetches and answers may be late, repeated or lost; disks forget what
was not synced; the halves of a truncation, of a flush and of a compaction are steps of their own. After each step the
disks and the memory of all three are compared with what was ever committed.
"""

from array import array
from random import Random
from typing import NamedTuple
from zlib import crc32

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap64

from goqueue.broker.delivery.stored_delays import CHANGE_KEY
from goqueue.broker.partition.commit_gate import InSync
from goqueue.broker.partition.fetching import Fetch, FetchAnswer, LogAnswer, Records
from goqueue.broker.partition.ledger import facts_in
from goqueue.broker.partition.producer_state import SEQUENCES_KEY, TRANSACTIONS_KEY
from goqueue.errors import NotEnoughReplicas, NotLeader, OutOfOrderSequence
from goqueue.record import kernel
from goqueue.record.identity import BatchIdentity
from goqueue.service.messages import StoredBatch
from goqueue.service.pending import Pending
from goqueue.storage.log import Log
from goqueue.testing import ManualClock
from goqueue.transactions.markers import markers_in
from goqueue.transactions.partition_transactions import OpenTransactionsSnapshot, PartitionTransactions
from goqueue.transactions.sequences import Sequences, SequenceSnapshot, identities
from tests.broker.partition.replicated import ORIGIN, Member, by_offset, records_of

NUMBERS = (1, 2, 3)
AT_LEAST = 2
TRANSACTIONAL = 9
"""The producer that uses transactions; the others are below."""
NOTE = b"n"
members = st.sampled_from(NUMBERS)
producers = st.integers(1, 2)
SECONDS_TO_SNAPSHOT = 11


class Decision(NamedTuple):
    """Who leads, and who was in sync when that was decided."""

    epoch: int
    leader: int
    in_sync: frozenset[int]


class Client:
    """A producer that has one batch under way, and sends it again until it is acknowledged."""

    def __init__(self) -> None:
        self.next_sequence = 0
        self.epoch = 0
        self.batch: BatchIdentity | None = None
        self.waits: list[Pending[StoredBatch]] = []

    def acknowledged(self) -> StoredBatch | None:
        """The answer to the batch that is under way, if there is one."""
        for pending in self.waits:
            if pending.is_done and pending.error is None:
                return pending.result()
        return None


class Truth:
    """All records of one log that were ever committed."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.end = 0

    def hold(self, log: Log, committed: int, who: str) -> None:
        """Compare what the log has below the offset that it takes for committed; new records become true."""
        found = by_offset(records_of(log, end=committed))
        for offset, record in found.items():
            known = self.records.setdefault(offset, record)
            assert known == record, f"{who}: committed record {offset} differs"
        self.end = max(self.end, committed)


class ReplicaMachine(RuleBasedStateMachine):
    """See the module."""

    @initialize(segment_bytes=st.sampled_from([300, 1_000, 1 << 20]))
    def begin(self, segment_bytes: int) -> None:
        self.clock = ManualClock()
        self.members = {number: Member(number, self.clock, segment_bytes=segment_bytes) for number in NUMBERS}
        self.epoch, self.leader = 1, 1
        self.in_sync = frozenset(NUMBERS)
        self.decisions = [Decision(self.epoch, self.leader, self.in_sync)]
        self.heard = dict.fromkeys(NUMBERS, (0, 0))  # the epoch and the leader that each replica knows
        self.fetches: list[tuple[int, int, Fetch]] = []
        self.answers: list[tuple[int, FetchAnswer]] = []
        self.log_truth, self.ledger_truth = Truth(), Truth()
        self.clients = {number: Client() for number in (1, 2, TRANSACTIONAL)}
        self.number = 1  # of the open transaction
        self.ending: tuple[bool, Pending[None]] | None = None
        self.acked: dict[BatchIdentity, int] = {}
        self.deleted_below = 0
        for number in NUMBERS:
            self.hear(number)

    # --- the controller ------------------------------------------------------------------------

    @rule(number=members)
    def elect(self, number: int) -> None:
        """Another leader, or the same one again: any that is in sync."""
        if number in self.in_sync:
            self.epoch, self.leader = self.epoch + 1, number
            self.decisions.append(Decision(self.epoch, self.leader, self.in_sync))

    @rule(number=members)
    def hear(self, number: int) -> None:
        """A replica learns what the controller has decided."""
        self._hear(number, Decision(self.epoch, self.leader, self.in_sync))

    @rule(number=members, back=st.integers(1, 5))
    def hear_late(self, number: int, back: int) -> None:
        """A replica that was started again learns first what was decided earlier."""
        if self.heard[number] == (0, 0) and back <= len(self.decisions):
            self._hear(number, self.decisions[-back])

    def _hear(self, number: int, decided: "Decision") -> None:
        member = self.members[number]
        if self.heard[number] == (decided.epoch, decided.leader) or decided.epoch < member.replica.epoch:
            return
        if number == decided.leader:
            if member.replica.epoch == decided.epoch:  # it has led in this epoch, and was started again
                return
            member.lead(decided.epoch, InSync(decided.in_sync, at_least=AT_LEAST))
        else:
            member.follow(decided.epoch)
        self.heard[number] = decided.epoch, decided.leader

    @rule(number=members)
    def leave(self, number: int) -> None:
        """A follower is not in sync any more. The leader hears of it after the controller has decided."""
        leader = self.members[self.leader].replica
        if number != self.leader and number in self.in_sync and self.is_heard(self.leader):
            self.in_sync -= {number}
            assert leader.followers is not None
            leader.followers.change(InSync(self.in_sync, at_least=AT_LEAST))

    @rule(number=members)
    def join(self, number: int) -> None:
        """A follower is in sync again. The leader counts it before the controller has decided."""
        leader = self.members[self.leader].replica
        if number in self.in_sync or not self.is_heard(self.leader) or leader.followers is None:
            return
        if leader.followers.has_caught_up(number):
            leader.followers.change(InSync(self.in_sync, frozenset([number]), AT_LEAST))
            self.in_sync |= {number}
            leader.followers.change(InSync(self.in_sync, at_least=AT_LEAST))

    def is_heard(self, number: int) -> bool:
        return self.heard[number] == (self.epoch, self.leader)

    # --- the network ---------------------------------------------------------------------------

    @rule(number=members)
    def ask(self, number: int) -> None:
        fetch = self.members[number].fetch
        if fetch is not None:
            self.fetches.append((number, self.heard[number][1], fetch))

    @precondition(lambda self: self.fetches)
    @rule(which=st.integers(0, 3), again=st.booleans(), max_bytes=st.sampled_from([1, 200, 1 << 20]))
    def reply(self, which: int, again: bool, max_bytes: int) -> None:
        number, leader, fetch = self.fetches[which % len(self.fetches)]
        if not again:
            del self.fetches[which % len(self.fetches)]
        answer = self.members[leader].answer(number, fetch, max_bytes=max_bytes)
        if answer is not None:
            self.answers.append((number, _copied(answer)))

    @precondition(lambda self: self.answers)
    @rule(which=st.integers(0, 3), again=st.booleans())
    def arrive(self, which: int, again: bool) -> None:
        number, answer = self.answers[which % len(self.answers)]
        if not again:
            del self.answers[which % len(self.answers)]
        self.members[number].take(answer)

    @rule(
        number=members,
        rounds=st.integers(1, 3),
        settles=st.booleans(),
        max_bytes=st.sampled_from([100, 250, 1 << 20]),
    )
    def exchange(self, number: int, rounds: int, settles: bool, max_bytes: int) -> None:
        """Some fetches without any delay."""
        for _ in range(rounds):
            member = self.members[number]
            leader = self.members[self.heard[number][1]] if self.heard[number][1] else member
            fetch = member.fetch
            answer = None if fetch is None else leader.answer(number, fetch, max_bytes=max_bytes)
            if answer is not None:
                member.take(answer)
            if settles:
                member.settle()

    @rule(producer=producers, is_delayed=st.booleans())
    def proceed(self, producer: int, is_delayed: bool) -> None:
        """For a moment nothing fails: all hear of the leader, copy what it has, and it stores another batch."""
        for number in NUMBERS:
            self.hear(number)
        for _ in range(2):
            for number in NUMBERS:
                if self.is_heard(number) and self.is_heard(self.leader):
                    self.members[number].copy_from(self.members[self.leader])
            self.publish(self.leader, producer, 2, is_delayed)

    # --- the disks -----------------------------------------------------------------------------

    @rule(number=members)
    def work(self, number: int) -> None:
        if self.members[number].workers.jobs:
            self.members[number].workers.run_one()

    @rule(number=members)
    def settle(self, number: int) -> None:
        self.members[number].settle()

    @rule(number=members, seed=st.none() | st.integers(0, 1_000))
    def crash(self, number: int, seed: int | None) -> None:
        self.members[number].crash(seed)
        self.heard[number] = (0, 0)

    @rule(number=members)
    def maintain(self, number: int) -> None:
        self.members[number].replica.maintain(may_compact=True, compacted=lambda: None)

    @rule()
    def pass_time(self) -> None:
        self.clock.advance(SECONDS_TO_SNAPSHOT)

    # --- users ---------------------------------------------------------------------------------

    @rule(number=members, producer=producers, count=st.integers(1, 3), is_delayed=st.booleans())
    def publish(self, number: int, producer: int, count: int, is_delayed: bool) -> None:
        self._publish(self.clients[producer], producer, 0, number, count, is_delayed)

    @rule(number=members, count=st.integers(1, 2))
    def publish_in_transaction(self, number: int, count: int) -> None:
        if self.ending is None:
            self._publish(self.clients[TRANSACTIONAL], TRANSACTIONAL, self.number, number, count, False)

    def _publish(
        self, client: Client, producer: int, transaction: int, number: int, count: int, is_delayed: bool
    ) -> None:
        if client.batch is None:
            client.batch = BatchIdentity(producer, client.epoch, client.next_sequence, count, transaction)
            client.next_sequence += count
        due_ns = self.clock.wall_ns() + 10**15 if is_delayed else 0
        try:
            client.waits.append(self.members[number].send(client.batch, due_ns=due_ns))
        except (NotLeader, NotEnoughReplicas):
            pass
        except OutOfOrderSequence:
            assert not self.is_heard(number)  # an old leader knows less

    @rule(commit=st.booleans(), number=members)
    def end_transaction(self, commit: bool, number: int) -> None:
        """Have the marker written, until that is acknowledged."""
        client = self.clients[TRANSACTIONAL]
        if client.batch is not None or not client.next_sequence:
            return
        commit = commit if self.ending is None else self.ending[0]
        try:
            leader = self.members[number].replica.leading
        except NotLeader:
            return
        if self.is_heard(number):
            self.ending = commit, leader.end_transaction(TRANSACTIONAL, self.number, commit=commit)

    @rule(number=members)
    def note(self, number: int) -> None:
        """A group writes a fact about the last record that it may see."""
        try:
            leader = self.members[number].replica.leading
        except NotLeader:
            return
        seen = by_offset(records_of(leader.log, end=leader.high_watermark))
        if seen:
            offset = max(seen)
            value = b"%d %d" % (offset, crc32(seen[offset]))
            leader.ledger.write([(NOTE + b"%d" % (offset % 3), value)])

    @rule(number=members, cancels=st.booleans())
    def use_delays(self, number: int, cancels: bool) -> None:
        """What the delivery of a leader does with delayed messages."""
        member = self.members[number]
        try:
            leader = member.replica.leading
        except NotLeader:
            return
        delays = member.open_delays()
        member.see_delays()
        assert delays.table.waiting == delayed_in(member)
        visible = BitMap64([offset for offset in delays.table.waiting if offset < leader.high_watermark])
        if cancels and visible:
            leader.ledger.write(delays.facts(visible[:1], None))
            delays.change(visible[:1], None, wall_ns=self.clock.wall_ns())

    # --- what must hold ------------------------------------------------------------------------

    @invariant()
    def all_that_must_hold(self) -> None:
        if hasattr(self, "members"):
            self.committed_records_stay()
            self.acknowledged_batches_are_stored_once()
            self.ledgers_speak_of_what_is_there()
            self.derived_state_is_that_of_the_log()

    def committed_records_stay(self) -> None:
        before = self.log_truth.end, self.ledger_truth.end
        for number, member in self.members.items():
            ledger_gate = member.replica._ledger_gate
            self.log_truth.hold(member.log, member.replica.high_watermark, f"log of {number}")
            if ledger_gate is not None:
                self.ledger_truth.hold(member.ledger, ledger_gate.offset, f"ledger of {number}")
        self._check_disks(before)
        self._learn_acks()

    def _check_disks(self, before: tuple[int, int]) -> None:
        for truth, end, is_log in ((self.log_truth, before[0], True), (self.ledger_truth, before[1], False)):
            if truth.end == end:
                continue
            logs = {number: one.log if is_log else one.ledger for number, one in self.members.items()}
            holding = {number for number, log in logs.items() if log.durable_offset >= truth.end}
            assert len(holding) >= AT_LEAST, "committed, but not on enough disks"
            assert self.in_sync <= holding, "committed, but one that is in sync has it not"

    def _learn_acks(self) -> None:
        for client in self.clients.values():
            stored = client.acknowledged()
            if stored is None or client.batch is None:
                continue
            end = stored.first_offset + stored.record_count
            assert end <= self.log_truth.end
            self.acked[client.batch] = stored.first_offset
            client.batch, client.waits = None, []
        if self.ending is not None and self.ending[1].is_done and self.ending[1].error is None:
            self.number += 1
            self.clients[TRANSACTIONAL].epoch += 1
            self.clients[TRANSACTIONAL].next_sequence = 0
            self.ending = None

    def acknowledged_batches_are_stored_once(self) -> None:
        found: dict[BatchIdentity, int] = {}
        for offset, _, batch in identities(memoryview(b"".join(self.log_truth.records.values()))):
            assert found.setdefault(batch, offset) == offset, f"{batch} is stored twice"
        for batch, offset in self.acked.items():
            assert found.get(batch) == offset, f"{batch} was acknowledged at {offset}"

    def ledgers_speak_of_what_is_there(self) -> None:
        for number, member in self.members.items():
            truth, log_end = self.log_truth, member.log.next_offset
            for key, value in facts_in(member.ledger, ORIGIN):
                if value is None:
                    continue
                if key[:1] == NOTE:
                    offset, crc = map(int, value.split())
                    assert crc32(truth.records[offset]) == crc
                    assert offset < log_end, f"the ledger of {number} speaks of {offset}"
                elif key == SEQUENCES_KEY:
                    covered = msgspec.msgpack.decode(value, type=SequenceSnapshot).next_offset
                    assert covered <= min(truth.end, log_end), f"a snapshot of {number} covers {covered}"
                elif key == TRANSACTIONS_KEY:
                    saved = msgspec.msgpack.decode(msgspec.msgpack.decode(value)[0], type=OpenTransactionsSnapshot)
                    assert saved.next_offset <= min(truth.end, log_end)

    def derived_state_is_that_of_the_log(self) -> None:
        for member in self.members.values():
            if member.replica.leader is not None or member.fetch is not None:
                check_derived(member)

    def teardown(self) -> None:
        """When nothing fails any more, all replicas become the same, and everything can be published."""
        if not hasattr(self, "members"):
            return
        self.elect(self.leader)
        for number in NUMBERS:
            self.members[number].settle()
            self.hear(number)
        leader = self.members[self.leader]
        for _ in range(3):
            for number in NUMBERS:
                if number != self.leader:
                    self.members[number].copy_from(leader)
                    self.join(number)
        assert self.in_sync == frozenset(NUMBERS)
        for producer in (1, 2):
            self.publish(self.leader, producer, 1, False)
        for _ in range(4):  # what was committed may write a snapshot to the ledger
            for number in NUMBERS:
                if number != self.leader:
                    self.members[number].copy_from(leader)
        self.all_that_must_hold()
        assert not any(self.clients[producer].batch for producer in (1, 2))
        for member in self.members.values():
            assert member.replica.high_watermark == member.log.next_offset == leader.log.next_offset
            assert records_of(member.log) == records_of(leader.log)
            assert dict(facts_in(member.ledger, ORIGIN)) == dict(facts_in(leader.ledger, ORIGIN))


def check_derived(member: Member) -> None:
    """Compare what a replica keeps with what its log says."""
    log, producers, search = member.log, member.replica.producers, member.replica.search
    records = memoryview(records_of(log))
    if producers.is_loaded:
        wanted = Sequences()
        wanted.note_records(records)
        assert _states(producers.sequences) == _states(wanted)
    transactions = PartitionTransactions()
    transactions.note_records(records)
    if producers.transactions is None:
        assert not transactions.open
        assert not transactions.aborted
    else:
        assert producers.transactions.open == transactions.open
        assert producers.transactions.aborted == transactions.aborted
        assert log.transactions.aborted().offsets == transactions.aborted
        markers = sum(1 for _ in markers_in(records))
        assert producers.message_count == log.record_count - markers
    if records and kernel.outline(records).delayed:
        assert search.has_delays


def _states(sequences: Sequences) -> dict[int, list[int]]:
    raw = msgspec.msgpack.decode(sequences.snapshot(0), type=SequenceSnapshot).states
    numbers, states = array("q", raw), dict[int, list[int]]()
    at = 0
    while at < len(numbers):
        producer, size = numbers[at], numbers[at + 1]
        states[producer] = numbers[at + 2 : at + 2 + size].tolist()
        at += 2 + size
    return states


def _copied(answer: FetchAnswer) -> FetchAnswer:
    """The answer as it arrives: its records are not those of the leader any more."""

    def copied(about: LogAnswer | None) -> LogAnswer | None:
        if about is None or not isinstance(about.found, Records):
            return about
        return about._replace(found=about.found._replace(records=bytes(about.found.records)))

    return answer._replace(log=copied(answer.log), ledger=copied(answer.ledger))


def delayed_in(member: Member) -> BitMap64:
    """The delayed messages that wait, by the log and the ledger."""
    records = records_of(member.log)
    found = BitMap64(memoryview(kernel.outline(records).delayed).cast("Q")[::3].tolist()) if records else BitMap64()
    for key, value in facts_in(member.ledger, ORIGIN):
        if key[:1] == CHANGE_KEY and value is not None:
            found.discard(int.from_bytes(key[1:]))
    return found


TestReplicas = ReplicaMachine.TestCase
TestReplicas.settings = settings(stateful_step_count=80, deadline=None)

# Where all rules are as likely, leaders change more often than anything is replicated. Here much is.
WEIGHTS = {
    "elect": 4,
    "hear": 8,
    "hear_late": 1,
    "leave": 2,
    "join": 8,
    "ask": 8,
    "reply": 6,
    "arrive": 6,
    "exchange": 18,
    "work": 6,
    "settle": 6,
    "crash": 2,
    "maintain": 3,
    "pass_time": 2,
    "publish": 9,
    "publish_in_transaction": 3,
    "end_transaction": 3,
    "note": 3,
    "use_delays": 2,
}


def chosen(name: str, draw: Random, leader: int) -> dict[str, object]:
    """Arguments for a rule; users find the leader more often than not."""
    number = draw.choice([leader, *NUMBERS] if name.startswith(("publish", "end", "note")) else NUMBERS)
    either: dict[str, object] = {"number": number}
    match name:
        case "hear_late":
            return {**either, "back": draw.randint(1, 5)}
        case "reply" | "arrive":
            sizes: dict[str, object] = {"max_bytes": draw.choice([1, 200, 1 << 20])} if name == "reply" else {}
            return {"which": draw.randrange(4), "again": draw.random() < 0.2, **sizes}
        case "exchange":
            some = {"rounds": draw.randint(1, 3), "settles": draw.random() < 0.5}
            return {**either, **some, "max_bytes": draw.choice([100, 250, 1 << 20])}
        case "crash":
            return {**either, "seed": draw.choice([None, draw.randrange(1_000)])}
        case "publish":
            some = {"producer": draw.randint(1, 2), "is_delayed": draw.random() < 0.2}
            return {**either, **some, "count": draw.randint(1, 3)}
        case "publish_in_transaction":
            return {**either, "count": draw.randint(1, 2)}
        case "end_transaction":
            return {**either, "commit": draw.random() < 0.5}
        case "use_delays":
            return {**either, "cancels": draw.random() < 0.5}
        case "pass_time":
            return {}
    return either


@settings(max_examples=2 * settings.default.max_examples, deadline=None)  # type: ignore[union-attr]
@given(seed=st.integers(0, 1 << 32))
def test_much_is_replicated_and_nothing_is_lost(seed: int) -> None:
    draw, machine = Random(seed), ReplicaMachine()
    machine.begin(segment_bytes=draw.choice([300, 1_000, 1 << 20]))
    for name in draw.choices(list(WEIGHTS), list(WEIGHTS.values()), k=150):
        if (name == "reply" and not machine.fetches) or (name == "arrive" and not machine.answers):
            continue
        getattr(machine, name)(**chosen(name, draw, machine.leader))
        machine.all_that_must_hold()
    machine.teardown()
