"""Sampling: whole stretches are in or out, and every event of a message gets the same answer."""

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.names import TopicPartition
from goqueue.tracing.sampling import STRETCH_BITS, Sampler, is_in

HERE = TopicPartition("orders", 0)
THERE = TopicPartition("orders", 1)
STRETCH = 1 << STRETCH_BITS
OFFSETS = st.sets(st.integers(0, 50 * STRETCH), max_size=30)


@given(offsets=OFFSETS, rate=st.floats(0.0, 1.0), taken=OFFSETS, left=OFFSETS)
def test_a_choice_is_made_message_by_message_though_nothing_is_done_once_per_message(
    offsets: set[int], rate: float, taken: set[int], left: set[int]
) -> None:
    sampler = Sampler()
    sampler.leave_out(HERE, BitMap64(left))
    sampler.take_in(HERE, BitMap64(taken))

    chosen = sampler.choose(HERE, rate, BitMap64(offsets))

    by_rate = {offset for offset in offsets if rate >= 1 or is_in(HERE, offset >> STRETCH_BITS, rate)}
    assert set(chosen) == (by_rate - (left - taken)) | (offsets & taken)


@given(first=st.integers(0, 5 * STRETCH), count=st.integers(1, 3 * STRETCH), rate=st.floats(0.0, 1.0), taken=OFFSETS)
def test_a_range_is_chosen_from_as_a_set_is(first: int, count: int, rate: float, taken: set[int]) -> None:
    sampler = Sampler()
    sampler.take_in(HERE, BitMap64(taken))
    offsets = BitMap64()
    offsets.add_range(first, first + count)

    assert sampler.choose_range(HERE, rate, first, first + count) == sampler.choose(HERE, rate, offsets)


def test_a_rate_is_the_share_of_stretches_and_a_higher_one_has_all_of_a_lower_one() -> None:
    few = {stretch for stretch in range(20_000) if is_in(HERE, stretch, 0.01)}
    many = {stretch for stretch in range(20_000) if is_in(HERE, stretch, 0.5)}

    assert 140 < len(few) < 260
    assert 9_700 < len(many) < 10_300
    assert few < many
    assert few != {stretch for stretch in range(20_000) if is_in(THERE, stretch, 0.01)}


def test_scattered_offsets_cost_as_many_looks_as_there_are_of_them() -> None:
    offsets = BitMap64([0, 1 << 40, (1 << 62) + 5])

    assert Sampler().choose(HERE, 1.0, offsets) == offsets
    assert Sampler().choose(HERE, 0.5, offsets) <= offsets


def test_only_the_latest_decisions_are_kept() -> None:
    sampler = Sampler(decisions_max=2)
    for offset in range(5):
        sampler.leave_out(HERE, BitMap64([offset]))

    assert list(sampler.choose(HERE, 1.0, BitMap64(range(5)))) == [0, 1, 2]
    sampler.leave_out(THERE, BitMap64([0]))
    sampler.leave_out(THERE, BitMap64([1]))
    assert sampler.takes_all(HERE, 1.0)
    assert not sampler.takes_all(THERE, 1.0)


def test_a_topic_that_is_gone_is_forgotten() -> None:
    sampler = Sampler()
    sampler.leave_out(HERE, BitMap64([1]))
    sampler.forget("orders")

    assert sampler.takes_all(HERE, 1.0)


def test_decisions_are_copies() -> None:
    sampler = Sampler()
    offsets = BitMap64([1])
    sampler.leave_out(HERE, offsets)
    offsets.add(2)

    assert list(sampler.choose(HERE, 1.0, BitMap64([1, 2]))) == [2]
    assert offsets == BitMap64([1, 2])
