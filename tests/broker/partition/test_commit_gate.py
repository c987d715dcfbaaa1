"""The gate: what is committed, by the disks of one replica or of several."""

from goqueue.broker.partition.commit_gate import FollowedGate, InSync, LocalGate, ReplicatedGate
from goqueue.record import kernel
from goqueue.storage.config import Flush, LogConfig
from goqueue.storage.log import Log
from goqueue.testing import MemoryDisk

ALL = InSync(frozenset([1, 2, 3]), at_least=2)


def a_log(count: int = 0, *, flush: Flush = Flush.GROUP) -> Log:
    log = Log.open(MemoryDisk(), "/log", LogConfig(flush=flush))
    add(log, count)
    log.flush()
    return log


def add(log: Log, count: int) -> None:
    for _ in range(count):
        log.append(kernel.encode([b"value"]), now_ns=1)


def test_alone_a_log_is_committed_when_it_is_durable() -> None:
    log = a_log(2)
    add(log, 1)

    assert LocalGate(log).offset == 2


def test_what_was_committed_stays_so_when_the_flush_mode_becomes_stricter() -> None:
    log = a_log(flush=Flush.NONE)
    add(log, 2)
    gate = LocalGate(log)
    assert gate.offset == 2

    log.config = LogConfig(flush=Flush.GROUP)

    assert gate.offset == 2


def test_the_high_watermark_is_the_least_durable_offset_of_all_that_are_in_sync() -> None:
    log = a_log(5)
    gate = ReplicatedGate(log, replica=1, in_sync=ALL, known=0)

    gate.report(2, 4)
    assert gate.offset == 0
    gate.report(3, 3)
    assert gate.offset == 3
    gate.report(3, 9)
    assert gate.offset == 4
    gate.report(2, 9)
    assert gate.offset == 5
    add(log, 1)
    assert gate.offset == 5  # it is not on the leader's own disk


def test_a_replica_that_is_about_to_join_counts_already() -> None:
    gate = ReplicatedGate(a_log(5), replica=1, in_sync=InSync(frozenset([1, 2]), at_least=2), known=0)
    gate.report(2, 2)
    assert gate.offset == 2

    gate.change(InSync(frozenset([1, 2]), frozenset([3]), 2))
    gate.report(2, 5)

    assert gate.offset == 2
    gate.report(3, 4)
    assert gate.offset == 4


def test_with_too_few_in_sync_replicas_nothing_more_is_committed() -> None:
    gate = ReplicatedGate(a_log(5), replica=1, in_sync=ALL, known=0)
    gate.report(2, 3)
    gate.report(3, 3)
    assert gate.offset == 3

    gate.change(InSync(frozenset([1]), at_least=2))
    gate.report(2, 5)
    assert gate.offset == 3

    gate.change(InSync(frozenset([1, 2]), at_least=2))
    assert gate.offset == 5


def test_a_new_leader_starts_from_what_it_knew_and_the_gate_never_falls() -> None:
    gate = ReplicatedGate(a_log(5), replica=1, in_sync=ALL, known=3)
    assert gate.offset == 3

    gate.report(2, 4)
    gate.report(3, 4)
    gate.report(3, 1)

    assert gate.offset == 4


def test_a_follower_has_caught_up_when_it_has_all_that_the_leader_found_and_committed() -> None:
    log = a_log(2)
    gate = ReplicatedGate(log, replica=1, in_sync=InSync(frozenset([1, 2])), known=0)
    add(log, 2)
    log.flush()
    gate.report(2, 4)

    assert not gate.has_caught_up(3)
    gate.report(3, 3)
    assert not gate.has_caught_up(3)
    gate.report(3, 4)
    assert gate.has_caught_up(3)


def test_a_follower_takes_nothing_for_committed_that_it_does_not_have() -> None:
    gate = FollowedGate(2)

    gate.told(9, 5)
    assert gate.offset == 5
    gate.told(3, 5)
    assert gate.offset == 5
