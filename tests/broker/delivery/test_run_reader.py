"""Reading what a cursor has taken: lanes share the room of an answer."""

import pytest
from pyroaring import BitMap64

from goqueue.broker.delivery.run_reader import first_of, read_runs
from goqueue.broker.partition.record_fetcher import RecordFetcher
from goqueue.delivery.lanes import LaneRun
from tests.broker.brokers import Node

LOW, HIGH = BitMap64([0, 1, 2, 3]), BitMap64([4, 5])


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, []), (1, [(1, [4])]), (2, [(1, [*HIGH])]), (3, [(1, [*HIGH]), (2, [0])]), (9, [(1, [*HIGH]), (2, [*LOW])])],
)
def test_the_first_of_some_parts_are_chosen_lane_by_lane(count: int, expected: list[tuple[int, list[int]]]) -> None:
    found = first_of([(2, LOW), (1, HIGH)], count)

    assert [(lane, list(offsets)) for lane, offsets in found] == [(lane, list(offsets)) for lane, offsets in expected]


def test_each_run_gets_its_part_of_the_room(node: Node) -> None:
    node.create()
    node.publish(*[b"x" * 966] * 6)  # 1,000 bytes each
    fetcher = RecordFetcher(node.leader())

    read = read_runs(fetcher, [LaneRun(2, LOW), LaneRun(1, HIGH)], 3_000)

    assert read.offsets == BitMap64([0, 1, 4])
    assert read.left == [LaneRun(2, BitMap64([2, 3])), LaneRun(1, BitMap64([5]))]
    assert not read.gone
    assert sum(map(len, read.records)) == 3_000


def test_the_first_record_comes_however_large_it_is(node: Node) -> None:
    node.create()
    node.publish(b"x" * 5_000, b"y")

    read = read_runs(RecordFetcher(node.leader()), [LaneRun(2, BitMap64([0, 1]))], 10)

    assert read.offsets == BitMap64([0])


def test_what_the_log_no_longer_has_is_gone(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b", b"c")
    node.done(node.broker.topics.truncate("orders", 0, before_offset=2))

    read = read_runs(RecordFetcher(node.leader()), [LaneRun(2, BitMap64([0, 1, 2]))], 1_000)

    assert (read.gone, read.offsets) == (BitMap64([0, 1]), BitMap64([2]))
