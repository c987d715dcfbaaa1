"""Corners of the cursor that a random walk meets too seldom."""

from pyroaring import BitMap64

from goqueue.clock import SECOND
from goqueue.delivery.cursor import DEADLINES_MIN, Cursor
from goqueue.delivery.index import PartitionIndex
from goqueue.delivery.lanes import LaneConfig, LaneRun
from goqueue.delivery.offsets import span
from goqueue.delivery.retry import RetryPolicy

POLICY = RetryPolicy()
NOTHING = BitMap64()


def with_messages(count: int, *, floor: int = 0) -> Cursor:
    index = PartitionIndex()
    cursor = Cursor(floor=floor, lanes=LaneConfig(), split=index.split, now_ns=0)
    admit(cursor, floor + count)
    return cursor


def admit(cursor: Cursor, end: int, *, hidden: BitMap64 = NOTHING, delayed: BitMap64 = NOTHING) -> None:
    cursor.admit(end, lanes=[BitMap64()] * 5, hidden=hidden, delayed=delayed, now_ns=0)


def lease(cursor: Cursor, delivery_id: int, count: int, *, deadline_ns: int = 10) -> BitMap64:
    offsets = BitMap64().union(*(part for _, part in cursor.take(count, now_ns=0)))
    cursor.lease(delivery_id, "anna", offsets.copy(), deadline_ns=deadline_ns, wall_ns=0)
    return offsets


def test_a_lease_holds_until_its_deadline_and_not_at_it() -> None:
    cursor = with_messages(3)
    offsets = lease(cursor, 1, 3, deadline_ns=10)

    assert cursor.leased(1, offsets, now_ns=9) == offsets
    assert not cursor.leased(1, offsets, now_ns=10)
    assert not cursor.leased(2, offsets, now_ns=9)
    assert list(cursor.expire_leases(POLICY, now_ns=9)) == []
    ((delivery, failed),) = cursor.expire_leases(POLICY, now_ns=10)
    assert delivery.id == 1
    assert failed.requeued[0].offsets == offsets


def test_the_floor_passes_what_is_done_in_any_order() -> None:
    cursor = with_messages(100_000)
    lease(cursor, 1, 100_000)

    cursor.ack(1, span(1, 100_000))
    assert (cursor.floor, len(cursor.acked)) == (0, 99_999)
    cursor.ack(1, BitMap64([0]))

    assert (cursor.floor, len(cursor.acked), cursor.in_flight) == (100_000, 0, {})


def test_deadlines_of_deliveries_that_are_over_do_not_pile_up_and_none_is_forgotten() -> None:
    cursor = with_messages(40_000)
    kept = lease(cursor, 1, 2, deadline_ns=5_000)
    cursor.extend(1, BitMap64([kept.max()]), deadline_ns=9_000)

    for delivery_id in range(2, 10_000):
        cursor.ack(delivery_id, lease(cursor, delivery_id, 3, deadline_ns=delivery_id + 20_000))

    assert len(cursor._deadlines) <= DEADLINES_MIN + 1
    assert [list(failed.requeued[0].offsets) for _, failed in cursor.expire_leases(POLICY, now_ns=5_000)] == [[0]]
    assert [list(failed.requeued[0].offsets) for _, failed in cursor.expire_leases(POLICY, now_ns=9_000)] == [[1]]


def test_a_record_that_is_hidden_lets_the_floor_pass_what_was_acked_behind_it() -> None:
    cursor = with_messages(0)
    cursor.commit(BitMap64([1, 2]))

    admit(cursor, 4, hidden=BitMap64([0]))

    assert cursor.floor == 3
    assert [list(lane) for lane in cursor.lanes.ready if lane] == [[3]]


def test_what_is_done_below_the_floor_leaves_no_trace() -> None:
    cursor = with_messages(5, floor=10)

    cursor.finish(BitMap64([3, 9, 12]))

    assert (cursor.floor, list(cursor.acked)) == (10, [12])


def test_what_was_taken_and_untaken_is_the_next() -> None:
    cursor = with_messages(5)
    (run,) = cursor.take(4, now_ns=0)

    cursor.untake([LaneRun(run.lane, BitMap64([1, 3]))])

    assert [list(offsets) for _, offsets in cursor.take(9, now_ns=0)] == [[1, 3, 4]]


def test_judging_changes_nothing() -> None:
    cursor = with_messages(3)
    offsets = lease(cursor, 1, 3)
    before = cursor.state()

    failed = cursor.judge(offsets, RetryPolicy(max_deliveries=1), now_ns=5)

    assert failed.dead == offsets
    assert cursor.state() == before
    assert cursor.judge(offsets, POLICY, now_ns=5, delay_ns=7).requeued[0].at_ns == 12


def test_backoffs_double_up_to_the_longest_and_need_no_jitter() -> None:
    waits = [RetryPolicy(max_deliveries=99).backoff_ns(deliveries) for deliveries in range(1, 9)]

    assert waits == [SECOND, 2 * SECOND, 4 * SECOND, 8 * SECOND, 16 * SECOND, 32 * SECOND, 60 * SECOND, 60 * SECOND]


def test_a_log_that_lost_its_end_takes_with_it_what_was_known_of_it() -> None:
    cursor = with_messages(10)
    lease(cursor, 1, 8)
    cursor.ack(1, BitMap64([0, 1, 6]))

    assert cursor.cut(5)

    assert (cursor.floor, cursor.frontier, list(cursor.acked)) == (2, 5, [])
    assert list(cursor.deliveries[1].offsets) == [2, 3, 4]
    assert cursor.in_flight == {"anna": 3}
    assert not cursor.cut(5)
    assert cursor.cut(0)
    assert (cursor.floor, cursor.frontier) == (0, 0)


def test_what_a_transaction_holds_has_no_deadline_and_nobody_has_it() -> None:
    cursor = with_messages(3)
    offsets = lease(cursor, 1, 3, deadline_ns=10)

    cursor.hold((7, 1), 1, BitMap64([0, 2, 99]))

    assert list(cursor.held_by((7, 1))) == [0, 2]
    assert not cursor.held_by((7, 2))
    assert cursor.in_flight == {"anna": 1}
    assert cursor.leased(1, offsets, now_ns=5) == BitMap64([1])
    ((_, failed),) = cursor.expire_leases(POLICY, now_ns=1_000)
    assert failed.requeued[0].offsets == BitMap64([1])
    cursor.finish(cursor.held_by((7, 1)))
    assert (cursor.floor, list(cursor.acked), cursor.held) == (1, [2], {})


def test_what_a_transaction_lets_go_is_due_at_once_or_was_delivered_often_enough() -> None:
    cursor = with_messages(2)
    for delivery_id in (1, 2):
        lease(cursor, delivery_id, 1)
        cursor.hold((7, delivery_id), delivery_id, BitMap64([0]))
        ((held, failed),) = cursor.abort((7, delivery_id), RetryPolicy(max_deliveries=2), now_ns=5)
        assert held.delivery_id == delivery_id
        assert cursor.deliveries_of(0) == delivery_id
        cursor.retry(now_ns=5)

    assert failed.dead == cursor.dead_lettering == BitMap64([0])
    assert not cursor.abort((7, 2), POLICY, now_ns=5)
    cursor.finish(cursor.dead_lettering.copy())
    assert cursor.floor == 1


def test_an_end_of_the_log_that_is_lost_takes_with_it_what_transactions_held_of_it() -> None:
    cursor = with_messages(10)
    lease(cursor, 1, 8)
    cursor.hold((7, 1), 1, BitMap64([3, 6]))

    assert cursor.cut(5)

    assert list(cursor.held_by((7, 1))) == [3]
    assert cursor.cut(3)
    assert cursor.held == {}


def test_a_poll_is_known_by_its_number_while_messages_of_it_are_leased() -> None:
    cursor = with_messages(2)
    cursor.take(2, now_ns=0)
    cursor.lease(1, "anna", BitMap64([0]), deadline_ns=10, wall_ns=0, poll=7)
    cursor.lease(2, "ben", BitMap64([1]), deadline_ns=10, wall_ns=0)

    found = cursor.polled("anna", 7)

    assert found == (cursor.deliveries[1],)
    assert not any((cursor.polled("anna", 6), cursor.polled("ben", 7), cursor.polled("ben", 0)))
    cursor.ack(1, BitMap64([0]))
    assert not cursor.polled("anna", 7)


def test_a_member_that_counts_anew_has_no_last_poll() -> None:
    cursor = with_messages(1)
    cursor.take(1, now_ns=0)
    cursor.lease(1, "anna", BitMap64([0]), deadline_ns=10, wall_ns=0, poll=7)

    cursor.forget_poll("anna")
    cursor.forget_poll("ben")

    assert not cursor.polled("anna", 7)
    assert cursor.leased(1, BitMap64([0]), now_ns=0) == BitMap64([0])


def test_what_is_reissued_has_a_new_deadline_and_its_old_delivery_is_over() -> None:
    cursor = with_messages(3)
    cursor.take(3, now_ns=0)
    cursor.lease(1, "anna", span(0, 3), deadline_ns=10, wall_ns=0, poll=7)
    cursor.ack(1, BitMap64([0]))

    cursor.reissue(cursor.polled("anna", 7), 2, span(1, 3), deadline_ns=20, wall_ns=5)

    assert 1 not in cursor.deliveries
    assert cursor.leased(2, span(0, 3), now_ns=19) == span(1, 3)
    assert (cursor.polled("anna", 7), cursor.in_flight) == ((cursor.deliveries[2],), {"anna": 2})
    assert cursor.redelivered(span(0, 3)) == {}
    assert list(cursor.expire_leases(POLICY, now_ns=19)) == []
