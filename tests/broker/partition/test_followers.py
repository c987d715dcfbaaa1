"""The leader's view of its followers: what it answers them, and what it counts."""

import pytest

from goqueue.broker.partition.commit_gate import InSync
from goqueue.broker.partition.fetching import (
    NO_RECORDS,
    Diverging,
    Fetch,
    FetchRefusal,
    LogPosition,
    OutOfRange,
    Records,
)
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.publishing import publish_batch
from goqueue.errors import NotEnoughReplicas, NotLeader
from goqueue.service.messages import StoredBatch
from goqueue.service.pending import Pending
from goqueue.testing import ManualClock
from goqueue.topics.config import Acks
from tests.broker.partition.replicated import Member, batch_of

NOTHING = LogPosition(0, NO_RECORDS, 0, 0)
TWO = InSync(frozenset([1, 2]), at_least=2)


@pytest.fixture
def leader() -> Member:
    """It leads in epoch 3, and has two records that nobody else has."""
    member = Member(1, ManualClock())
    member.lead(3, TWO)
    member.send(None, b"a", b"b")
    member.settle()
    return member


def test_a_fetch_of_another_epoch_is_refused_and_counts_for_nothing(leader: Member) -> None:
    has_all = LogPosition(2, 3, 2, 0)

    for epoch, refusal in ((2, FetchRefusal.FENCED_EPOCH), (4, FetchRefusal.UNKNOWN_EPOCH)):
        answer = leader.answer(2, Fetch(epoch, has_all, NOTHING))
        assert answer is not None
        assert (answer.epoch, answer.refusal, answer.log) == (3, refusal, None)

    assert leader.replica.high_watermark == 0


def test_records_are_sent_with_their_epoch_before_they_are_durable(leader: Member) -> None:
    leader.send(None, b"c")

    answer = leader.answer(2, Fetch(3, NOTHING, NOTHING))

    assert answer is not None
    assert answer.log is not None
    assert isinstance(answer.log.found, Records)
    assert answer.log.found[:2] == (3, 0)
    assert answer.log.found.next_offset == 3


def test_the_durable_offset_of_a_log_that_differs_does_not_count(leader: Member) -> None:
    answer = leader.answer(2, Fetch(3, LogPosition(2, 1, 2, 0), NOTHING))

    assert answer is not None
    assert answer.log is not None
    assert isinstance(answer.log.found, Diverging | OutOfRange)
    assert leader.replica.high_watermark == 0


def test_a_follower_is_counted_by_what_is_on_its_disk(leader: Member) -> None:
    answer = leader.answer(2, Fetch(3, LogPosition(2, 3, 1, 0), NOTHING))

    assert answer is not None
    assert answer.log is not None
    assert answer.log.high_watermark == leader.replica.high_watermark == 1


def test_a_new_leader_serves_when_all_that_it_found_is_committed(leader: Member) -> None:
    leader.lead(4, TWO)

    with pytest.raises(NotLeader):
        _ = leader.replica.leading
    leader.answer(2, Fetch(4, LogPosition(2, 3, 1, 0), NOTHING))
    with pytest.raises(NotLeader):
        _ = leader.replica.leading
    leader.answer(2, Fetch(4, LogPosition(2, 3, 2, 0), NOTHING))

    assert leader.replica.leading is leader.replica.leader
    assert leader.replica.leading.high_watermark == 2


def test_a_follower_may_join_when_it_has_both_logs(leader: Member) -> None:
    followers = leader.replica.followers
    assert followers is not None
    leader.answer(2, Fetch(3, LogPosition(2, 3, 2, 0), NOTHING))
    leader.replica.leading.ledger.write([(b"n", b"fact")])
    leader.settle()
    leader.answer(2, Fetch(3, LogPosition(2, 3, 2, 0), LogPosition(1, 3, 1, 0)))

    leader.answer(3, Fetch(3, LogPosition(2, 3, 2, 0), NOTHING))
    assert not followers.has_caught_up(3)
    leader.answer(3, Fetch(3, LogPosition(2, 3, 2, 0), LogPosition(1, 3, 1, 0)))
    assert followers.has_caught_up(3)


def test_a_deposed_leader_answers_no_fetch(leader: Member) -> None:
    followers = leader.replica.followers
    assert followers is not None
    leader.resign()

    with pytest.raises(NotLeader):
        followers.answer(2, Fetch(3, NOTHING, NOTHING))


def publish(leader: PartitionLeader, value: bytes, acks: Acks) -> Pending[StoredBatch]:
    return publish_batch(leader, batch_of(None, value), acks=acks, identity=None)


def test_acks_of_the_leader_alone_wait_for_no_follower() -> None:
    clock = ManualClock()
    leader, follower = Member(1, clock), Member(2, clock)
    leading = leader.lead(1, TWO)
    follower.follow(1)
    follower.copy_from(leader)

    alone, both = publish(leading, b"a", Acks.LEADER), publish(leading, b"b", Acks.ALL)
    leader.settle()
    assert (alone.is_done, both.is_done) == (True, False)

    follower.copy_from(leader)
    assert both.result().first_offset == 1


def test_with_too_few_in_sync_replicas_nothing_is_written_that_all_of_them_should_have() -> None:
    leader = Member(1, ManualClock())
    leading = leader.lead(1, InSync(frozenset([1]), at_least=2))

    with pytest.raises(NotEnoughReplicas, match="1 replicas of orders-0 are in sync, and acks=all needs 2"):
        publish(leading, b"a", Acks.ALL)
    alone = publish(leading, b"b", Acks.LEADER)
    leader.settle()

    assert alone.result().first_offset == 0
    assert leader.log.next_offset == 1


def test_a_leader_that_ends_fails_the_acks_that_wait_for_its_disk_alone() -> None:
    leader = Member(1, ManualClock())
    waiting = publish(leader.lead(1, TWO), b"a", Acks.LEADER)

    leader.resign()

    assert isinstance(waiting.error, NotLeader)


def test_followers_are_told_of_records_facts_and_the_high_watermark() -> None:
    clock = ManualClock()
    leader, follower = Member(1, clock), Member(2, clock)
    leading = leader.lead(1, TWO)
    told: list[int] = []
    leading.tell_followers(lambda: told.append(leader.replica.high_watermark))
    follower.follow(1)
    follower.copy_from(leader)

    for write in (lambda: publish(leading, b"a", Acks.ALL), lambda: leading.ledger.write([(b"key", b"fact")])):
        told.clear()
        write()
        assert told, "there is something to fetch"
        leader.settle()
        told.clear()
        follower.copy_from(leader)
        assert told, "it is committed"
