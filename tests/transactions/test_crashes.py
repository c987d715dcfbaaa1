"""A crash after every single effect of a commit: all or nothing, everywhere, and once per marker."""

import copy
from collections.abc import Callable, Iterator

import pytest

from goqueue.errors import GoQueueError, ProducerFenced
from goqueue.wire.transaction_reports import BegunTransaction, ProducerSession, TransactionOutcome, TransactionOwner
from tests.transactions.world import Call, Crashed, World

MARKER = "query-7 batch-3"
WORK = {"a": ((0, "a0"), (1, "a1"), (2, "a2")), "b": ((1, "b1"),)}
"""Who publishes what to which partition."""


def owner(transactional_id: str, begun: BegunTransaction) -> TransactionOwner:
    return TransactionOwner(transactional_id, begun.producer_id, begun.epoch)


class Run:
    """Two producers that do their work in one step, with one marker; and what they know of it."""

    def __init__(self, *, marker: str | None = MARKER) -> None:
        self.world = World()
        self.marker = marker
        self.sessions: dict[str, ProducerSession] = {}
        self.begun: dict[str, BegunTransaction] = {}
        self.commit: Call | None = None

    def prepare(self) -> bool:
        """Everything up to the commit; False if it was committed before."""
        for name in WORK:
            session = self.world.finish(self.world.init(name))
            assert isinstance(session, ProducerSession)
            self.sessions[name] = session
        for name, work in WORK.items():
            begun = self.world.finish(self.world.begin(name, self.sessions[name], marker=self.marker))
            assert isinstance(begun, BegunTransaction)
            if begun.already_committed:
                return False
            self.begun[name] = begun
            for partition, value in work:
                self.world.finish(self.world.publish(begun, partition, value))
        self.world.finish(self.world.add_position(self.begun["a"], "billing", 7))
        self.world.finish(self.world.add_acks(self.begun["b"], "shipping", [3, 5]))
        return True

    def start_commit(self) -> Call:
        main, *together = (owner(name, begun) for name, begun in self.begun.items())
        self.commit = self.world.commit(main, together, marker=self.marker)
        return self.commit

    @property
    def seen(self) -> list[object]:
        return [value for number in range(3) for value in self.world.visible(number)]

    def expect_all(self) -> None:
        assert sorted(map(str, self.seen)) == ["a0", "a1", "a2", "b1"]
        assert self.world.positions() == {"billing": 7}
        assert self.world.acked() == {("shipping", 3), ("shipping", 5)}

    def expect_nothing(self) -> None:
        assert self.seen == []
        assert self.world.positions() == {}
        assert self.world.acked() == set()

    def expect_nothing_open(self) -> None:
        assert self.world.core.list() == []
        for partition in self.world.partitions:
            assert partition.replayed()[1] == {}


def after_each_effect(start: Callable[[Run], Call]) -> Iterator[tuple[Run, Crashed]]:
    """Every moment of a call, and every way in which the world may crash at it."""
    count = 0
    while True:
        run = Run()
        run.prepare()
        call = start(run)
        for _ in range(count):
            run.world.step(call)
        for kept in run.world.ways_to_crash():
            yield copied(run), kept
        if call.is_over:
            return
        count += 1


def copied(run: Run) -> Run:
    """The run at its end: what its world has on disk, and who knows what."""
    twin = copy.copy(run)
    twin.world = World()
    twin.world.now_ns = run.world.now_ns
    twin.world.new_id = run.world.new_id
    twin.world.journal = copy.deepcopy(run.world.journal)
    twin.world.partitions = copy.deepcopy(run.world.partitions)
    twin.world.ledger = copy.deepcopy(run.world.ledger)
    return twin


def recovered(run: Run, kept: Crashed) -> None:
    run.world.crash(kept)
    for _ in run.world.recover():
        pass


def test_a_commit_of_several_transactions_is_all_or_nothing_after_a_crash_anywhere() -> None:
    outcomes = set()
    for run, kept in after_each_effect(Run.start_commit):
        is_answered = run.commit is not None and run.commit.answer is not None

        recovered(run, kept)

        run.expect_nothing_open()
        if run.seen or is_answered:
            run.expect_all()
        else:
            run.expect_nothing()
        outcomes.add((is_answered, bool(run.seen)))
    assert outcomes == {(False, False), (False, True), (True, True)}


def test_whoever_asks_again_after_a_crash_hears_what_became_of_it() -> None:
    for run, kept in after_each_effect(Run.start_commit):
        recovered(run, kept)
        has_happened = bool(run.seen)

        again = run.start_commit()
        try:
            answer: object = run.world.finish(again)
        except GoQueueError as error:
            answer = error.code

        assert answer == (TransactionOutcome("committed", already=True) if has_happened else "TRANSACTION_TIMEOUT")
        if has_happened:
            run.expect_all()
        else:
            run.expect_nothing()


def test_what_is_done_all_over_again_under_its_marker_happens_once() -> None:
    for run, kept in after_each_effect(Run.start_commit):
        recovered(run, kept)
        has_happened = bool(run.seen)

        assert run.prepare() is not has_happened
        if not has_happened:
            assert run.world.finish(run.start_commit()) == TransactionOutcome("committed")
        run.world.settle()

        run.expect_all()
        run.expect_nothing_open()


def test_an_abort_is_an_abort_after_a_crash_anywhere() -> None:
    def start_abort(run: Run) -> Call:
        return run.world.abort(owner("a", run.begun["a"]))

    for run, kept in after_each_effect(start_abort):
        recovered(run, kept)

        run.expect_nothing_open()
        run.expect_nothing()
        assert run.world.finish(run.world.abort(owner("a", run.begun["a"]))) == TransactionOutcome("aborted", True)


def test_a_crash_in_the_middle_of_the_recovery_from_a_crash_changes_nothing() -> None:
    seen = set()
    for run, kept in after_each_effect(Run.start_commit):
        if kept.ledger or len(set(kept.partitions)) == 3:
            continue
        run.world.crash(kept)
        expected = copied(run)
        for _ in expected.world.recover():
            pass
        effect_count = sum(1 for _ in copied(run).world.recover())
        for crash_at in range(0, effect_count + 1, 2):
            twin = copied(run)
            recovery = twin.world.recover()
            for _ in range(crash_at):
                next(recovery)
            tails = tuple(partition.tail_count // 2 for partition in twin.world.partitions)

            recovered(twin, Crashed(twin.world.journal.tail_count // 2, tails, 0))

            twin.expect_nothing_open()
            assert sorted(map(str, twin.seen)) == sorted(map(str, expected.seen))
            assert twin.world.positions() == expected.world.positions()
            seen.add(bool(twin.seen))
    assert seen == {False, True}


def test_what_goes_on_after_a_commit_is_not_touched_by_carrying_it_out_again() -> None:
    """The decision is not settled yet, and the next transactions of the same producers are under way, or committed."""
    for next_effects in range(12):
        run = Run()
        run.prepare()
        commit = run.start_commit()
        while commit.answer is None:
            run.world.step(commit)
        begun = run.world.begin("a", run.sessions["a"])
        run.world.step(begun)
        assert isinstance(begun.answer, BegunTransaction)
        publish = run.world.publish(begun.answer, 0, "next")
        while not publish.is_over:
            run.world.step(publish)
        following = run.world.commit(owner("a", begun.answer))
        for _ in range(next_effects):
            run.world.step(following)
        is_decided = any(
            entry[0] == b"d:" + begun.answer.transaction_id.encode() for entry in run.world.journal.entries
        )

        recovered(run, Crashed(run.world.journal.tail_count, (0, 0, 0), 0))

        assert sorted(map(str, run.seen)) == ["a0", "a1", "a2", "b1", *(["next"] if is_decided else [])]
        run.expect_nothing_open()


def test_a_new_instance_fences_the_old_one_at_every_moment_of_its_commit() -> None:
    count = 0
    is_over = False
    while not is_over:
        run = Run(marker=None)
        run.prepare()
        if count:
            commit = run.start_commit()
            for _ in range(count):
                run.world.step(commit)
            is_over = commit.is_over

        session = run.world.finish(run.world.init("a"))
        run.world.settle()

        assert isinstance(session, ProducerSession)
        assert session.producer_id == run.sessions["a"].producer_id
        assert session.epoch == run.sessions["a"].epoch + 1
        with pytest.raises(ProducerFenced):
            run.world.finish(run.world.publish(run.begun["a"], 0, "zombie"))
        with pytest.raises(ProducerFenced):
            run.world.finish(run.world.begin("a", run.sessions["a"]))
        with pytest.raises(ProducerFenced):
            run.world.finish(run.start_commit())
        if count:
            run.expect_all()  # it was asked for before the new instance came
        else:
            run.expect_nothing()
        count += 1
    assert count > 10
