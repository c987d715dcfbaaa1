"""One open transaction: what it has touched."""

from pyroaring import BitMap64

from goqueue.transactions.decisions import DecidedAcks
from tests.transactions.desk import Desk


def test_acks_that_are_handed_in_are_not_kept_hold_of() -> None:
    transaction = Desk().opened()
    offsets = BitMap64([1])
    transaction.add_acks(DecidedAcks("g", "t", "id", 0, offsets), wall_ns=0)
    offsets.add(2)
    transaction.add_acks(DecidedAcks("g", "t", "id", 0, BitMap64([3])), wall_ns=0)

    assert transaction.part().acks[0].offsets == BitMap64([1, 3])
    assert offsets == BitMap64([1, 2])


def test_a_topic_that_was_made_anew_meanwhile_takes_the_place_of_the_old_one() -> None:
    transaction = Desk().opened()
    transaction.add_partition("t", "old", 0, wall_ns=0)
    transaction.add_acks(DecidedAcks("g", "t", "old", 0, BitMap64([1])), wall_ns=0)

    assert transaction.add_partition("t", "new", 0, wall_ns=0)
    transaction.add_acks(DecidedAcks("g", "t", "new", 0, BitMap64([2])), wall_ns=0)

    assert [one.topic_id for one in transaction.part().partitions] == ["new"]
    assert transaction.part().acks == [DecidedAcks("g", "t", "new", 0, BitMap64([2]))]
