"""Acks are given in the order of their offsets, when the log vouches for them, and never after it has failed."""

from errno import EIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.broker.partition.acks import AckQueue
from goqueue.errors import StorageFailed, TopicNotFound
from goqueue.service.pending import Pending
from goqueue.storage.config import Flush
from goqueue.testing import FaultyDisk, MemoryDisk
from tests.storage.logs import append, open_log


def test_an_ack_comes_when_the_log_vouches_for_all_below_it(disk: MemoryDisk) -> None:
    log = open_log(disk)
    acks = AckQueue(log)
    append(log, [b"a", b"b"])
    ack = acks.when_stored(2, "stored")

    acks.release()
    assert (ack.is_done, len(acks)) == (False, 1)
    log.flush()
    acks.release()

    assert (ack.result(), len(acks)) == ("stored", 0)
    assert acks.when_stored(1, "at once").result() == "at once"


def test_a_log_that_is_not_flushed_vouches_at_once(disk: MemoryDisk) -> None:
    log = open_log(disk, flush=Flush.NONE)
    append(log, [b"a"])

    assert AckQueue(log).when_stored(1, "stored").is_done


@given(steps=st.lists(st.one_of(st.integers(1, 3), st.just("flush")), max_size=30))
def test_acks_are_given_in_order_and_none_too_early(steps: list[int | str]) -> None:
    log = open_log(MemoryDisk())
    acks, given_to = AckQueue(log), list[int]()

    def note(done: Pending[int]) -> None:
        given_to.append(done.result())

    for step in steps:
        if isinstance(step, int):
            end = append(log, [b"v"] * step).last_offset + 1
            acks.when_stored(end, end).then(note)
        elif log.next_offset:
            log.flush()
        acks.release()
        assert given_to == sorted(given_to)
        assert all(end <= log.ackable_offset for end in given_to)
        assert bool(acks) == (log.ackable_offset < log.next_offset)


def test_nothing_that_waits_is_acknowledged_once_the_log_has_failed(disk: MemoryDisk) -> None:
    faulty = FaultyDisk(disk, seed=1)
    log = open_log(faulty)
    acks = AckQueue(log)
    append(log, [b"safe"])
    log.flush()
    append(log, [b"lost"])
    waiting = acks.when_stored(2, "stored")
    faulty.fail_next("sync", EIO, path_suffix=".log")
    with pytest.raises(StorageFailed):
        log.flush()

    acks.release()

    for refused in (waiting, acks.when_stored(2, "stored")):
        with pytest.raises(StorageFailed):
            refused.result()
    assert acks.when_stored(1, "stored").result() == "stored"
    assert not acks


def test_whoever_waits_is_told_that_there_will_be_no_ack(disk: MemoryDisk) -> None:
    log = open_log(disk)
    acks = AckQueue(log)
    append(log, [b"a", b"b"])
    waiting = [acks.when_stored(end, end) for end in (1, 2)]

    acks.fail(TopicNotFound("orders"))

    for ack in waiting:
        with pytest.raises(TopicNotFound):
            ack.result()
    assert not acks
