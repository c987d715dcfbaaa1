"""Reads give what is visible, in order, and skip nothing."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.broker.partition import reading
from goqueue.clock import SECOND
from goqueue.service.messages import ReadResult
from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock, MemoryDisk
from tests.broker.brokers import Node, delayed, offsets_of, values_of, wait

OFFSET_MAX = 2**63 - 1


# --- where a read begins -------------------------------------------------------------------------


def test_a_read_begins_at_its_offset(node: Node) -> None:
    node.create()
    node.publish(b"0", b"1", b"2")

    result = node.read(offset=1)

    assert (values_of(result), result.next_offset) == ([b"1", b"2"], 3)
    assert (result.high_watermark, result.last_stable_offset, result.log_start_offset) == (3, 3, 0)
    assert result.first_pending_offset is None
    assert not result.end_of_range


@pytest.mark.parametrize("offset", [3, 4, 1_000, OFFSET_MAX])
def test_a_read_past_the_end_finds_nothing_and_stays_where_it_is(node: Node, offset: int) -> None:
    node.create()
    node.publish(b"0", b"1", b"2")

    result = node.read(offset=offset)

    assert (result.record_count, result.next_offset) == (0, offset)


def test_below_the_start_means_the_start(node: Node) -> None:
    node.create(segment_bytes=1024, retention_bytes=2_000)
    for number in range(40):
        node.publish(str(number).encode() * 50)
    node.pass_time(11)

    result = node.read(offset=0, max_records=1)

    assert result.log_start_offset > 0
    assert offsets_of(result) == [result.log_start_offset]
    assert node.broker.topics.offsets("orders", at="earliest") == [result.log_start_offset]


# --- limits --------------------------------------------------------------------------------------


def test_a_limit_of_records_cuts_and_the_next_read_goes_on_there(node: Node) -> None:
    node.create()
    node.publish(*[str(number).encode() for number in range(10)])
    seen: list[bytes] = []
    offset = 0

    while (result := node.read(offset=offset, max_records=3)).record_count:
        assert result.record_count <= 3
        seen += values_of(result)
        offset = result.next_offset

    assert seen == [str(number).encode() for number in range(10)]


@pytest.mark.parametrize("max_bytes", [1, 100, 135, 400])
def test_a_limit_of_bytes_holds_but_the_first_record_comes_even_if_it_is_larger(node: Node, max_bytes: int) -> None:
    node.create()
    node.publish(*[b"x" * 100] * 5)
    node.publish(b"y" * 5_000, b"x" * 100)

    offset, sizes = 0, []
    while (result := node.read(offset=offset, max_bytes=max_bytes)).record_count:
        assert len(result.records) <= max_bytes or result.record_count == 1
        sizes += [len(value) for value in values_of(result)]
        offset = result.next_offset

    assert sizes == [100] * 5 + [5_000, 100]


def test_the_limit_of_bytes_holds_for_those_who_follow_closely(node: Node) -> None:
    node.create(flush="none")
    waiting = wait(node, max_bytes=200)

    node.send([b"x" * 60] * 20)

    assert waiting.result().record_count == 2


@pytest.mark.parametrize("size", [100, 1_000, 5_000])
def test_a_limit_is_reached_whatever_the_size_of_the_records(node: Node, size: int) -> None:
    node.create()
    node.publish(*[b"x" * size] * 150)

    assert node.read(max_records=100).record_count == 100


# --- what is hidden ------------------------------------------------------------------------------


def test_a_delayed_record_is_hidden_until_it_is_due_and_is_told_of(node: Node, clock: ManualClock) -> None:
    node.create()
    due_ns = clock.wall_ns() + SECOND
    node.messages(NewMessage(b"0"), delayed(b"1", due_ns), NewMessage(b"2"))

    early = node.read()
    assert (offsets_of(early), early.next_offset, early.first_pending_offset) == ([0, 2], 3, 1)
    clock.advance_ns(SECOND - 1)
    assert offsets_of(node.read()) == [0, 2]
    clock.advance_ns(1)
    late = node.read()
    assert (offsets_of(late), late.first_pending_offset) == ([0, 1, 2], None)


def test_only_a_pending_record_that_was_passed_is_told_of(node: Node, clock: ManualClock) -> None:
    node.create()
    node.messages(NewMessage(b"0"), NewMessage(b"1"), delayed(b"2", clock.wall_ns() + SECOND), NewMessage(b"3"))

    first = node.read(max_records=1)
    assert (first.next_offset, first.first_pending_offset) == (1, None)
    second = node.read(offset=1, max_records=1)
    assert (offsets_of(second), second.next_offset) == ([1], 3)
    assert second.first_pending_offset == 2


def test_a_range_that_is_hidden_as_a_whole_is_passed(node: Node, clock: ManualClock) -> None:
    node.create()
    node.messages(*[delayed(b"later", clock.wall_ns() + SECOND)] * 20)
    node.control(10)
    node.workers.run_all()

    result = node.read()

    assert (result.record_count, result.next_offset, result.first_pending_offset) == (0, 30, 0)


Shape = list[str]


@given(
    st.lists(
        st.lists(st.sampled_from(["visible", "delayed", "control", "header"]), min_size=1, max_size=6), max_size=8
    ),
    st.lists(st.tuples(st.integers(1, 7), st.integers(1, 700)), min_size=1, max_size=5),
    st.booleans(),
)
def test_no_visible_record_is_ever_skipped(batches: list[Shape], limits: list[tuple[int, int]], follow: bool) -> None:
    clock = ManualClock()
    node = Node(MemoryDisk(), clock)
    node.create(segment_bytes=1024)
    due_ns = clock.wall_ns() + SECOND
    shapes: Shape = []
    subscription = node.broker.messages.subscribe("orders", 0, offset=0)
    if follow:
        subscription.when_ready(lambda: None)
    for batch in batches:
        for kind in batch:
            if kind == "control":
                node.control()
                node.workers.run_all()
            else:
                headers = {"h": "v"} if kind == "header" else None
                node.messages(
                    NewMessage(b"v" * 40, headers=headers, deliver_at_ns=due_ns if kind == "delayed" else None)
                )
            shapes.append(kind)

    for read in (reads(node, limits), subscribed(subscription, limits)):
        seen: list[int] = []
        offset = 0
        for result in read:
            passed = range(offset, result.next_offset)
            assert result.next_offset >= offset
            assert offsets_of(result) == [at for at in passed if shapes[at] in ("visible", "header")]
            pending = next((at for at in passed if shapes[at] == "delayed"), None)
            assert result.first_pending_offset == pending
            seen += offsets_of(result)
            offset = result.next_offset
        assert seen == [at for at, kind in enumerate(shapes) if kind in ("visible", "header")]
        assert offset == len(shapes)


def reads(node: Node, limits: list[tuple[int, int]]) -> Iterator[ReadResult]:
    offset, turn = 0, 0
    while offset < node.leader().high_watermark:
        max_records, max_bytes = limits[turn % len(limits)]
        yield (result := node.read(offset=offset, max_records=max_records, max_bytes=max_bytes))
        assert result.next_offset > offset
        offset, turn = result.next_offset, turn + 1


def subscribed(subscription: reading.Reading, limits: list[tuple[int, int]]) -> Iterator[ReadResult]:
    turn = 0
    while True:
        before = subscription.next_offset
        max_records, max_bytes = limits[turn % len(limits)]
        yield (result := subscription.read(max_records=max_records, max_bytes=max_bytes))
        if result.next_offset == before:
            return
        turn += 1


# --- times ---------------------------------------------------------------------------------------


def stamped(node: Node, count: int) -> list[int]:
    """Publish records a second apart; when each was stored."""
    times = []
    for number in range(count):
        times.append(node.publish(str(number).encode()).timestamp_ns)
        node.clock.advance(1)
    return times


def test_a_range_of_times_gives_what_was_stored_in_it(node: Node) -> None:
    node.create()
    times = stamped(node, 6)

    result = node.read(from_time_ns=times[1], to_time_ns=times[4])

    assert (offsets_of(result), result.next_offset, result.end_of_range) == ([1, 2, 3], 4, True)
    assert offsets_of(node.read(from_time_ns=times[1] + 1)) == [2, 3, 4, 5]
    assert offsets_of(node.read(offset=5, from_time_ns=times[1])) == [5]
    assert node.broker.topics.offsets("orders", time_ns=times[3]) == [3]
    assert node.broker.topics.offsets("orders", time_ns=times[5] + 1) == [6]
    assert node.broker.topics.offsets("orders", time_ns=0) == [0]


def test_the_end_of_a_range_is_told_with_its_last_records_and_without_any(node: Node) -> None:
    node.create()
    times = stamped(node, 4)

    part = node.read(to_time_ns=times[2], max_records=1)
    assert (offsets_of(part), part.end_of_range) == ([0], False)
    rest = node.read(offset=1, to_time_ns=times[2])
    assert (offsets_of(rest), rest.end_of_range) == ([1], True)
    for offset in (2, 3, 4, 99):
        behind = node.read(offset=offset, to_time_ns=times[2])
        assert (behind.record_count, behind.end_of_range, behind.next_offset) == (0, True, offset)


def test_a_range_that_reaches_into_the_future_ends_when_that_has_come(node: Node) -> None:
    node.create()
    to_ns = node.clock.wall_ns() + 2 * SECOND
    node.publish(b"0")
    assert not node.read(to_time_ns=to_ns).end_of_range

    pending = wait(node, offset=1, wait_ms=10_000, to_time_ns=to_ns)
    node.tick(1)
    assert not pending.is_done
    node.tick(1)
    assert pending.result().end_of_range


def test_a_range_does_not_end_before_what_belongs_to_it_is_on_the_disk(node: Node) -> None:
    node.create()
    pending_write = node.send([b"0"])
    node.clock.advance(1)
    to_ns = node.clock.wall_ns()

    pending = wait(node, wait_ms=10_000, to_time_ns=to_ns)
    for _ in range(3):
        node.tick(1)
    assert not pending.is_done

    node.workers.run_all()
    assert pending_write.is_done
    assert (values_of(pending.result()), pending.result().end_of_range) == ([b"0"], True)


def test_a_read_from_a_time_gives_nothing_older_that_only_becomes_visible_later(node: Node) -> None:
    node.create()
    node.send([b"old"])
    node.clock.advance(1)
    from_ns = node.clock.wall_ns()
    node.clock.advance(1)

    pending = wait(node, from_time_ns=from_ns)
    node.workers.run_all()
    assert not pending.is_done
    node.publish(b"new")

    assert values_of(pending.result()) == [b"new"]


def test_a_read_from_a_time_in_the_future_gives_nothing_that_is_stored_before(node: Node) -> None:
    node.create()
    pending = wait(node, wait_ms=10_000, from_time_ns=node.clock.wall_ns() + 2 * SECOND)

    node.publish(b"too early")
    node.clock.advance(1)
    node.publish(b"too early")
    assert not pending.is_done
    node.clock.advance(1)
    node.publish(b"in time")

    assert values_of(pending.result()) == [b"in time"]


@pytest.mark.parametrize("time_ns", [-(2**63), -1, 0, 2**63 - 1, 2**64 - 1])
def test_times_beyond_all_clocks_are_times_all_the_same(node: Node, time_ns: int) -> None:
    node.create(segment_bytes=1024)
    for _ in range(30):
        node.publish(b"v" * 60)
    is_past = time_ns <= 0

    assert bool(node.read(from_time_ns=time_ns).record_count) == is_past
    assert bool(node.read(to_time_ns=time_ns).record_count) != is_past
    assert node.broker.topics.offsets("orders", time_ns=time_ns) == [0 if is_past else 30]


# --- subscriptions -------------------------------------------------------------------------------


def test_a_subscription_goes_on_where_it_stands_through_rolled_segments(node: Node) -> None:
    node.create(segment_bytes=1024)
    subscription = node.broker.messages.subscribe("orders", 0, offset=0)
    seen: list[bytes] = []
    woken: list[int] = []

    for number in range(60):
        subscription.when_ready(lambda number=number: woken.append(number))
        node.publish(str(number).encode() * 30)
        while (result := subscription.read(max_bytes=500)).record_count:
            seen += values_of(result)

    assert seen == [str(number).encode() * 30 for number in range(60)]
    assert woken == list(range(60))
    assert node.leader().log.segment_count > 2


def test_a_callback_replaces_the_one_before_and_a_closed_subscription_calls_nobody(node: Node) -> None:
    node.create()
    subscription = node.broker.messages.subscribe("orders", 0, offset=0)
    called: list[str] = []

    subscription.when_ready(lambda: called.append("first"))
    subscription.when_ready(lambda: called.append("second"))
    node.publish(b"0")
    assert called == ["second"]
    subscription.read(max_bytes=1_000)
    subscription.when_ready(lambda: called.append("third"))
    subscription.close()
    node.publish(b"1")
    assert called == ["second"]


def test_a_reader_that_retention_overtakes_goes_on_at_the_new_start(node: Node) -> None:
    node.create(segment_bytes=1024, retention_bytes=2_000)
    subscription = node.broker.messages.subscribe("orders", 0, offset=0)
    node.publish(b"v" * 50)
    assert subscription.read(max_bytes=1_000).record_count == 1
    for _ in range(60):
        node.publish(b"v" * 50)
    node.pass_time(11)

    result = subscription.read(max_bytes=100_000)

    assert offsets_of(result)[0] == result.log_start_offset > 1
