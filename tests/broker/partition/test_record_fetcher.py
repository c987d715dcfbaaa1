import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.broker.partition.record_fetcher import FEW, NEARBY_BYTES, Found, RecordFetcher
from goqueue.names import TopicPartition
from goqueue.record.message import decode_messages
from goqueue.testing import ManualClock, MemoryDisk
from tests.broker.brokers import Node

ROOM = 1024 * 1024
ORIGIN = TopicPartition("orders", 0)


def fetched(found: Found) -> list[tuple[int, bytes]]:
    messages = decode_messages(found.records, ORIGIN, flags=found.flags)
    assert [message.offset for message in messages] == list(found.offsets)
    return [(message.offset, message.value or b"") for message in messages]


def some(fetcher: RecordFetcher, *offsets: int) -> list[tuple[int, bytes]]:
    return fetched(fetcher.some(BitMap64(offsets), ROOM))


def numbered(start: int, end: int) -> list[tuple[int, bytes]]:
    return [(offset, b"%d" % offset) for offset in range(start, end)]


@pytest.fixture
def filled(node: Node) -> Node:
    node.create(segment_bytes=4_096)
    for start in range(0, 300, 50):
        node.publish(*[b"%d" % number for number in range(start, start + 50)])
    return node


def test_who_asks_for_one_after_the_other_gets_each(filled: Node) -> None:
    fetcher = RecordFetcher(filled.leader())

    assert [one for offset in range(300) for one in some(fetcher, offset)] == numbered(0, 300)


def test_who_asks_for_one_after_the_other_needs_the_disk_now_and_then(filled: Node, disk: MemoryDisk) -> None:
    """As long as there is something nearby, nothing is read: not even from a disk that is broken."""
    fetcher = RecordFetcher(filled.leader())
    assert some(fetcher, 0) == numbered(0, 1)
    for path in disk.paths():
        if path.endswith(".log") and len(disk.read(path)) > 100:
            disk.flip_bit(path, 100)

    assert some(fetcher, 1) == numbered(1, 2)


@given(
    ranges=st.lists(st.tuples(st.integers(0, 299), st.integers(1, 3 * FEW)), min_size=1, max_size=30),
)
def test_any_order_brings_what_is_asked_for(ranges: list[tuple[int, int]]) -> None:
    node = Node(MemoryDisk(), ManualClock())
    node.create(segment_bytes=4_096)
    node.publish(*[b"%d" % number for number in range(300)])
    fetcher = RecordFetcher(node.leader())

    for start, count in ranges:
        end = min(300, start + count)
        assert some(fetcher, *range(start, end)) == numbered(start, end)


def test_what_retention_took_meanwhile_is_gone_and_not_kept(node: Node, clock: ManualClock) -> None:
    node.create(segment_bytes=1_024, retention="60s")
    for start in range(0, 60, 10):
        node.publish(*[b"x" * 80 + b"%d" % number for number in range(start, start + 10)])
    fetcher = RecordFetcher(node.leader())
    assert some(fetcher, 0)
    clock.advance(100)
    node.publish(b"new")
    node.pass_time(60, step=10)
    assert node.leader().log.start_offset > 2

    found = fetcher.some(BitMap64([1]), ROOM)

    assert (len(found.records), list(found.offsets), list(found.gone)) == (0, [], [1])


def test_what_is_published_later_is_found_behind_what_was_nearby(node: Node) -> None:
    node.create()
    node.publish(b"0")
    fetcher = RecordFetcher(node.leader())
    assert some(fetcher, 0) == numbered(0, 1)
    node.publish(b"1", b"2")

    assert some(fetcher, 1) == numbered(1, 2)
    assert some(fetcher, 2) == numbered(2, 3)


def test_records_that_are_larger_than_what_is_read_nearby_come_all_the_same(node: Node) -> None:
    node.create()
    values = [b"%d" % number * NEARBY_BYTES for number in range(5)]
    node.publish(*values)
    fetcher = RecordFetcher(node.leader())

    assert [one for offset in range(5) for one in some(fetcher, offset)] == list(enumerate(values))
    assert some(fetcher, 0, 1) == list(enumerate(values[:2]))


def test_what_does_not_fit_is_left_but_for_the_first(filled: Node) -> None:
    fetcher = RecordFetcher(filled.leader())

    found = fetcher.some(BitMap64(range(5)), 100)

    assert 1 <= len(found.offsets) < 5
    assert fetched(found) == numbered(0, len(found.offsets))
