"""Bulk readers see the log as it stands, know what they may not see, and are told where to cut."""

import pytest

from goqueue.clock import SECOND
from goqueue.errors import InvalidPartition, InvalidRequest, PartitionNotFound, TopicNotFound
from goqueue.service.new_message import NewMessage
from goqueue.wire.scan_reports import HiddenRange
from tests.broker.brokers import Node, offsets_of
from tests.broker.transactional import Owner

HOUR_S = 3600


def delayed(node: Node, value: bytes, seconds: int = HOUR_S) -> None:
    node.messages(NewMessage(value, deliver_at_ns=node.clock.wall_ns() + seconds * SECOND))


def scan(node: Node, end_offset: int, *, offset: int = 0, isolation: str = "read_committed") -> list[int]:
    """The offsets of what a reader of the log sees."""
    found: list[int] = []
    while offset < end_offset:
        asked = node.broker.messages.read(
            "orders", 0, offset=offset, end_offset=end_offset, isolation=isolation, delayed="include"
        )
        result = asked.result()
        found += offsets_of(result)
        if result.next_offset <= offset:
            break
        offset = result.next_offset
    return found


def test_a_delayed_message_is_read_where_it_stands_and_a_cancelled_one_is_not(node: Node) -> None:
    node.create()
    node.publish(b"a")
    delayed(node, b"later")
    delayed(node, b"never")
    node.publish(b"b")
    node.done(node.broker.delays.cancel("orders", partition=0, offset=2))

    assert scan(node, 4) == [0, 1, 3]
    assert node.values() == [b"a", b"b"]


def test_a_range_ends_before_its_end_offset(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b", b"c")

    assert scan(node, 2) == [0, 1]
    assert scan(node, 2, offset=2) == []
    result = node.broker.messages.read("orders", 0, end_offset=2).result()
    assert (result.next_offset, result.end_of_range) == (2, True)


def test_a_range_that_reaches_beyond_the_log_ends_with_it(node: Node) -> None:
    node.create()
    node.publish(b"a")

    assert scan(node, 100) == [0]
    assert not node.broker.messages.read("orders", 0, end_offset=100).result().end_of_range


def test_what_is_hidden_is_told_in_ranges(node: Node) -> None:
    node.create()
    node.publish(b"a")
    owner = Owner(node)
    owner.begin()
    owner.publish(b"x", b"y")
    owner.abort()
    delayed(node, b"later")
    delayed(node, b"never")
    node.done(node.broker.delays.cancel("orders", partition=0, offset=5))

    def hidden(start: int = 0, end: int = 100, **how: str) -> list[tuple[int, int]]:
        found = node.broker.scans.hidden("orders", 0, start_offset=start, end_offset=end, **how)
        return [(one.first_offset, one.end_offset) for one in found]

    assert hidden() == [(1, 3), (4, 6)]
    assert hidden(delayed="include") == [(1, 3), (5, 6)]
    assert hidden(isolation="read_uncommitted") == [(4, 6)]
    assert hidden(2, 5) == [(2, 3), (4, 5)]
    assert hidden(90, 100) == []
    node.pass_time(HOUR_S + 1, step=60)
    assert hidden() == [(1, 3), (5, 6)]


def test_what_is_hidden_is_the_same_after_a_restart(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.publish(b"x")
    owner.abort()
    delayed(node, b"never")
    node.done(node.broker.delays.cancel("orders", partition=0, offset=2))
    node.broker.close()
    again = Node(node.disk, node.clock)

    found = again.broker.scans.hidden("orders", 0, start_offset=0, end_offset=10, delayed="include")

    assert found == [HiddenRange(0, 1), HiddenRange(2, 3)]


def test_a_message_that_was_rescheduled_is_told_with_its_new_time_as_long_as_the_log_has_it(node: Node) -> None:
    node.create()
    for value in (b"a", b"b", b"c", b"d"):
        delayed(node, value)
    new_ns = node.clock.wall_ns() + 7 * SECOND
    for offset in (0, 1, 3):
        node.done(node.broker.delays.reschedule("orders", partition=0, offset=offset, deliver_at_ns=new_ns + offset))
    node.done(node.broker.delays.reschedule("orders", partition=0, offset=1, deliver_at_ns=new_ns))
    node.done(node.broker.delays.cancel("orders", partition=0, offset=0))

    def told(node: Node, start: int = 0, end: int = 9) -> list[tuple[int, int]]:
        found = node.broker.scans.rescheduled("orders", 0, start_offset=start, end_offset=end)
        return [(one.offset, one.due_ns) for one in found]

    assert told(node) == [(1, new_ns), (3, new_ns + 3)]
    assert (told(node, 2), told(node, 0, 3)) == ([(3, new_ns + 3)], [(1, new_ns)])
    node.pass_time(60, step=60)
    assert told(node) == [(1, new_ns), (3, new_ns + 3)]  # what was delivered, too
    node.broker.close()
    again = Node(node.disk, node.clock)
    assert told(again) == [(1, new_ns), (3, new_ns + 3)]
    with pytest.raises(InvalidRequest):
        again.broker.scans.rescheduled("orders", 0, start_offset=2, end_offset=1)


def test_pieces_cover_the_range_without_a_gap(node: Node) -> None:
    node.create(segment_bytes=64 * 1024)
    for _ in range(30):
        node.publish(*[b"." * 100] * 100)

    pieces = node.broker.scans.pieces("orders", 0, start_offset=7, end_offset=2_900, piece_bytes=20_000)

    firsts = [piece.first_offset for piece in pieces]
    assert firsts[0] == 7
    assert firsts == sorted(set(firsts))
    assert firsts[-1] < 2_900
    assert all(8_000 < piece.size_bytes < 33_000 for piece in pieces[:-1])
    assert abs(sum(piece.size_bytes for piece in pieces) - 2_893 * 134) < 10_000


def test_a_range_of_nothing_has_no_pieces_and_one_beyond_the_log_takes_no_bytes(node: Node) -> None:
    node.create()
    node.publish(b"a")

    def pieces(start: int, end: int) -> list[tuple[int, int]]:
        found = node.broker.scans.pieces("orders", 0, start_offset=start, end_offset=end, piece_bytes=1)
        return [(piece.first_offset, piece.size_bytes) for piece in found]

    assert pieces(0, 0) == []
    assert pieces(50, 60) == [(50, 0)]


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"start_offset": 3, "end_offset": 1, "piece_bytes": 1}, "start_offset"),
        ({"start_offset": -1, "end_offset": 1, "piece_bytes": 1}, "start_offset"),
        ({"start_offset": 0, "end_offset": 1, "piece_bytes": 0}, "piece_bytes"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(node: Node, arguments: dict[str, int], path: str) -> None:
    node.create()

    with pytest.raises(InvalidRequest) as refused:
        node.broker.scans.pieces("orders", 0, **arguments)

    assert refused.value.path == path


def test_choices_and_places_that_are_not_there_are_named(node: Node) -> None:
    node.create()

    with pytest.raises(InvalidRequest, match="invalid delayed 'all': must be due or include"):
        node.broker.messages.read("orders", 0, delayed="all")
    with pytest.raises(InvalidRequest, match="invalid delayed"):
        node.broker.scans.hidden("orders", 0, start_offset=0, end_offset=1, delayed="all")
    with pytest.raises(InvalidRequest, match="invalid isolation"):
        node.broker.scans.hidden("orders", 0, start_offset=0, end_offset=1, isolation="none")
    with pytest.raises(TopicNotFound):
        node.broker.scans.hidden("nowhere", 0, start_offset=0, end_offset=1)
    with pytest.raises(PartitionNotFound):
        node.broker.scans.pieces("orders", 7, start_offset=0, end_offset=1, piece_bytes=1)
    with pytest.raises(InvalidPartition):
        node.broker.scans.pieces("orders", -1, start_offset=0, end_offset=1, piece_bytes=1)
