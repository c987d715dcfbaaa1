"""Whose turn it is: shares, boosts, strictness and order."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.clock import SECOND
from goqueue.delivery.lanes import DEFAULT_WEIGHTS, LANE_COUNT, LaneConfig, LaneRun, Lanes
from goqueue.delivery.offsets import span
from goqueue.errors import InvalidConfig

ROOM = 100_000


def full(config: LaneConfig | None = None, lanes: tuple[int, ...] = (0, 1, 2, 3, 4), count: int = 20_000) -> Lanes:
    made = Lanes(config or LaneConfig(), now_ns=0)
    for lane in lanes:
        made.put(lane, span(lane * ROOM, lane * ROOM + count), now_ns=0)
    return made


def served(lanes: Lanes, size: int, total: int, *, now_ns: int = 1) -> Counter[int]:
    counts: Counter[int] = Counter()
    while counts.total() < total:
        for lane, offsets in lanes.take(size, now_ns=now_ns):
            counts[lane] += len(offsets)
    return counts


@pytest.mark.parametrize("size", [1, 7, 100, 500])
def test_full_lanes_get_their_shares(size: int) -> None:
    counts = served(full(), size, 10_000)

    for lane, weight in enumerate(DEFAULT_WEIGHTS):
        assert abs(100 * counts[lane] / counts.total() - weight) < 2


@pytest.mark.parametrize("fits", [40, 99, 300])
def test_they_do_where_some_of_what_was_taken_is_always_put_back(fits: int) -> None:
    lanes = full()
    counts: Counter[int] = Counter()

    while counts.total() < 10_000:
        runs = lanes.take(500, now_ns=1)
        total = sum(len(offsets) for _, offsets in runs)
        left = []
        for lane, offsets in runs:
            kept = offsets[: max(1, len(offsets) * fits // total)]
            counts[lane] += len(kept)
            if rest := offsets - kept:
                left.append(LaneRun(lane, rest))
        lanes.untake(left)

    for lane, weight in enumerate(DEFAULT_WEIGHTS):
        assert abs(100 * counts[lane] / counts.total() - weight) < 2


def test_an_empty_lane_passes_its_share_on() -> None:
    counts = served(full(lanes=(1, 3)), 100, 9_600)

    assert counts[1] / counts[3] == pytest.approx(25 / 7, rel=0.03)
    assert served(full(lanes=(4,)), 500, 1_000)[4] == 1_000


def test_the_shares_are_those_of_the_topic() -> None:
    counts = served(full(LaneConfig(weights=(1, 1, 1, 1, 1))), 10, 10_000)

    assert max(counts.values()) - min(counts.values()) <= 10


def test_a_strict_topic_serves_a_lane_only_when_those_above_are_empty() -> None:
    lanes = full(LaneConfig(strict=True, boost_ns=0), count=10)

    order = [lane for _ in range(50) for lane, _ in lanes.take(1, now_ns=10**15)]

    assert order == sorted(order)
    assert len(order) == 50


def test_a_lane_that_waits_too_long_goes_first_once() -> None:
    lanes = full(LaneConfig(strict=True))
    assert [lane for lane, _ in lanes.take(10, now_ns=29 * SECOND)] == [0]

    boosted = []
    for step in range(6):
        runs = lanes.take(10, now_ns=(30 + step) * SECOND)
        boosted.append((runs[0].lane, lanes.boosted))

    assert boosted == [(1, 1), (2, 2), (3, 3), (4, 4), (0, None), (0, None)]


@pytest.mark.parametrize("strict", [False, True])
def test_a_lane_of_which_nothing_went_out_was_not_served(strict: bool) -> None:
    lanes = full(LaneConfig(strict=strict), count=100)
    taken = lanes.take(10, now_ns=31 * SECOND)
    first = lanes.boosted
    assert first == taken[0].lane

    lanes.untake(taken[:1])  # it does not fit
    assert lanes.boosted is None
    again = lanes.take(10, now_ns=31 * SECOND)
    assert (again[0].lane, lanes.boosted) == (first, first)
    lanes.untake([LaneRun(first, again[0].offsets[1:])])  # one of them does

    assert lanes.boosted == first
    assert lanes.take(10, now_ns=31 * SECOND)[0].lane != first


def test_a_lane_that_was_just_filled_does_not_wait_yet() -> None:
    lanes = Lanes(LaneConfig(strict=True), now_ns=0)
    lanes.put(0, span(0, 1_000), now_ns=100 * SECOND)
    lanes.put_range(4, 2_000, 2_010, now_ns=100 * SECOND)

    assert [lane for lane, _ in lanes.take(5, now_ns=129 * SECOND)] == [0]
    assert [lane for lane, _ in lanes.take(5, now_ns=131 * SECOND)] == [4, 0]


def test_within_a_lane_the_order_is_that_of_the_offsets() -> None:
    lanes = Lanes(LaneConfig(), now_ns=0)
    lanes.put(2, BitMap64([9, 5, 100_000, 7]), now_ns=0)

    assert [list(offsets) for _, offsets in lanes.take(2, now_ns=0)] == [[5, 7]]
    lanes.put(2, BitMap64([3]), now_ns=0)
    assert [list(offsets) for _, offsets in lanes.take(2, now_ns=0)] == [[3, 9]]
    assert len(lanes) == 1
    assert 100_000 in lanes


@given(
    st.lists(st.tuples(st.integers(0, LANE_COUNT - 1), st.integers(1, 40)), max_size=8),
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), max_size=20),
)
def test_nothing_is_lost_and_nothing_is_taken_twice(
    filled: list[tuple[int, int]], takes: list[tuple[int, int]]
) -> None:
    lanes = Lanes(LaneConfig(), now_ns=0)
    everything: set[int] = set()
    for number, (lane, count) in enumerate(filled):
        lanes.put_range(lane, number * 100, number * 100 + count, now_ns=0)
        everything |= set(range(number * 100, number * 100 + count))
    gone: set[int] = set()

    for number, (count, kept) in enumerate(takes):
        runs = lanes.take(count, now_ns=number * 7 * SECOND)
        taken = [offset for _, offsets in runs for offset in offsets]
        assert len(taken) == min(count, len(everything - gone))
        assert not gone & set(taken)
        delivered = set(taken[:kept])
        gone |= delivered
        lanes.untake([LaneRun(lane, left) for lane, offsets in runs if (left := offsets - BitMap64(delivered))])
        assert len(lanes) == len(everything - gone)

    lanes.discard(BitMap64(list(everything)[:5]))
    lanes.drop_below(10**6)
    assert not lanes


def test_weights_that_make_no_sense_are_refused() -> None:
    for weights in ((1, 2, 3, 4), (1, 1, 1, 1, 0)):
        with pytest.raises(InvalidConfig):
            LaneConfig(weights=weights)
