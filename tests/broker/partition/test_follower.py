"""The follower copies both logs, and keeps what it needs to lead. `test_replica_machine.py` has the interleavings."""

import pytest

from goqueue.broker.partition.commit_gate import InSync
from goqueue.broker.partition.fetching import Diverging
from goqueue.broker.partition.ledger import facts_in
from goqueue.broker.partition.producer_state import SEQUENCES_KEY
from goqueue.errors import Conflict
from goqueue.record.identity import BatchIdentity
from goqueue.testing import ManualClock
from tests.broker.partition.replicated import ORIGIN, ROOT, Member, records_of

TWO = InSync(frozenset([1, 2]), at_least=2)


@pytest.fixture
def pair() -> tuple[Member, Member]:
    """A leader in epoch 1 and its follower."""
    clock = ManualClock()
    one, two = Member(1, clock), Member(2, clock)
    one.lead(1, TWO)
    two.follow(1)
    two.copy_from(one)
    return one, two


def publish(leader: Member, follower: Member, producer: int, sequence: int, *, transaction: int = 0) -> None:
    """A batch of one record, committed."""
    stored = leader.send(BatchIdentity(producer, 0, sequence, 1, transaction))
    leader.settle()
    follower.copy_from(leader)
    assert stored.is_done


def test_an_ack_waits_until_the_follower_has_the_batch_on_its_disk(pair: tuple[Member, Member]) -> None:
    one, two = pair
    stored = one.send(None, b"value")
    one.settle()

    fetch = two.fetch
    assert fetch is not None
    answer = one.answer(2, fetch)
    assert answer is not None
    two.take(answer)
    again = two.fetch
    assert again is not None
    one.answer(2, again)  # it has the record, and has not synced it
    assert again.log.offset == 1
    assert one.replica.high_watermark == 0
    assert not stored.is_done

    two.copy_from(one)

    stored.result()
    assert one.replica.high_watermark == two.replica.high_watermark == 1


def test_what_a_deposed_leader_wrote_alone_is_cut_off(pair: tuple[Member, Member]) -> None:
    one, two = pair
    publish(one, two, 7, 0)
    lost = one.send(BatchIdentity(7, 0, 1, 1))
    one.settle()

    two.lead(2, TWO)
    one.follow(2)
    one.copy_from(two)

    assert lost.error is not None
    publish(two, one, 7, 1)
    assert records_of(one.log) == records_of(two.log)
    assert [entry.epoch for entry in one.log.epochs.entries] == [1, 2]


def test_the_ledger_waits_for_the_log(pair: tuple[Member, Member]) -> None:
    one, two = pair
    three = Member(3, one.clock)
    publish(one, two, 7, 0)
    one.replica.leading.ledger.write([(b"n", b"a fact about offset 0")])
    one.settle()
    three.follow(1)

    fetch = three.fetch
    assert fetch is not None
    answer = one.answer(3, fetch)
    assert answer is not None
    three.take(answer)

    assert three.log.next_offset == 1
    assert three.ledger.next_offset == 0  # the record is not on its disk yet
    three.copy_from(one)
    assert three.ledger.next_offset == 1


def test_an_abort_counts_as_durable_when_its_index_is(pair: tuple[Member, Member]) -> None:
    one, two = pair
    publish(one, two, 9, 0, transaction=1)
    one.replica.leading.end_transaction(9, 1, commit=False)
    one.replica.leading.flush(lazily=True)
    one.settle()

    fetch = two.fetch
    assert fetch is not None
    answer = one.answer(2, fetch)
    assert answer is not None
    two.take(answer)
    two.workers.run_one()  # the flush of the log; the index is not written yet
    assert two.log.durable_offset == two.log.next_offset == 2
    assert two.fetch is not None
    assert two.fetch.log.durable_offset == 1

    two.settle()
    assert two.fetch.log.durable_offset == 2
    two.crash()
    two.follow(1)
    assert two.replica.producers.transactions is not None
    assert list(two.replica.producers.transactions.aborted) == [0]


def test_a_late_answer_to_an_older_question_changes_nothing(pair: tuple[Member, Member]) -> None:
    one, two = pair
    one.send(BatchIdentity(7, 0, 0, 1))
    one.settle()
    two.lead(2, TWO)
    two.send(BatchIdentity(8, 0, 0, 1), early=True)
    one.follow(2)
    fetch = one.fetch
    assert fetch is not None
    late = two.answer(1, fetch)
    assert late is not None

    one.copy_from(two)
    assert one.log.next_offset == fetch.log.offset  # the same end, of another history
    before = records_of(one.log)
    one.take(late)
    one.settle()

    assert records_of(one.log) == before == records_of(two.log)


def test_nothing_is_cut_below_the_high_watermark(pair: tuple[Member, Member]) -> None:
    one, two = pair
    publish(one, two, 7, 0)
    empty = Member(3, one.clock)
    empty.lead(2, InSync(frozenset([3])))
    empty.send(BatchIdentity(8, 0, 0, 1))
    empty.settle()
    two.follow(2)

    fetch = two.fetch
    assert fetch is not None
    answer = empty.answer(2, fetch)
    assert answer is not None
    assert answer.log is not None
    lost = answer._replace(log=answer.log._replace(found=Diverging(0, 0)))
    with pytest.raises(Conflict):
        two.take(lost)

    assert two.log.next_offset == 1


def test_a_delay_file_is_removed_before_the_log_is_cut(pair: tuple[Member, Member]) -> None:
    one, two = pair
    due_ns = one.clock.wall_ns() + 10**12
    one.send(BatchIdentity(7, 0, 0, 1), due_ns=due_ns)
    one.settle()
    assert one.delays is not None
    assert list(one.delays.table.waiting) == [0]

    two.lead(2, TWO)
    two.send(BatchIdentity(8, 0, 0, 1), early=True)
    one.follow(2)
    assert f"{ROOT}/delays" in one.disk.paths()
    one.copy_from(two)
    assert f"{ROOT}/delays" not in one.disk.paths()

    one.lead(3, InSync(frozenset([1])))
    assert list(one.open_delays().table.waiting) == []


def test_a_follower_knows_the_sequences_of_producers_when_it_leads(pair: tuple[Member, Member]) -> None:
    one, two = pair
    publish(one, two, 7, 0)
    publish(one, two, 7, 1)
    assert two.replica.producers.is_loaded

    two.lead(2, TWO)
    one.follow(2)
    one.copy_from(two)

    assert two.done(two.send(BatchIdentity(7, 0, 1, 1))) == (1, 1, one.clock.wall_ns(), True)


def test_a_snapshot_of_producers_never_covers_what_a_truncation_takes_back(pair: tuple[Member, Member]) -> None:
    """The snapshot trap: it would make a batch that never was committed look like an acknowledged duplicate.

    Without the check in `PartitionLeader._write_snapshots` the ledger gets a snapshot as of offset 2, which survives
    because both replicas have it, while the second batch does not.
    """
    one, two = pair
    publish(one, two, 7, 0)
    one.clock.advance(11)
    lost = one.send(BatchIdentity(7, 0, 1, 1))  # a snapshot is taken with the flush of this batch
    one.settle()
    assert not lost.is_done
    assert SEQUENCES_KEY not in dict(facts_in(one.ledger, ORIGIN))
    two.copy_ledger_only(one)

    two.lead(2, TWO)
    one.follow(2)
    one.copy_from(two)
    other = two.send(BatchIdentity(8, 0, 0, 1), b"other")  # takes the offset of the batch that was lost
    two.settle()
    one.copy_from(two)
    assert other.is_done

    two.crash()
    one.lead(3, InSync(frozenset([1])))
    again = one.done(one.send(BatchIdentity(7, 0, 1, 1)))
    assert not again.duplicate
    assert again.first_offset == 2


def test_a_fallen_behind_follower_starts_anew_with_both_logs(pair: tuple[Member, Member]) -> None:
    one, two = pair
    publish(one, two, 7, 0)
    two.resign()
    one.replica.followers.change(InSync(frozenset([1])))  # type: ignore[union-attr]
    for sequence in range(1, 4):
        one.done(one.send(BatchIdentity(7, 0, sequence, 1)))
    job = one.log.begin_delete_records(3)
    assert job is not None
    job.run()
    one.log.complete(job)

    two.follow(1)
    two.copy_from(one)

    assert (two.log.start_offset, two.log.next_offset) == (3, 4)
    assert records_of(two.log) == records_of(one.log)


def test_a_follower_deletes_what_its_leader_has_deleted(pair: tuple[Member, Member]) -> None:
    one, two = pair
    for sequence in range(3):
        publish(one, two, 7, sequence)
    job = one.log.begin_delete_records(2)
    assert job is not None
    job.run()
    one.log.complete(job)
    one.send(BatchIdentity(7, 0, 3, 1))
    one.settle()
    two.copy_from(one)

    two.replica.maintain(may_compact=True, compacted=lambda: None)
    two.settle()

    assert two.log.start_offset == 2
