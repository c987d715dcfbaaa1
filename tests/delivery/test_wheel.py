"""Nothing fires early, nothing is a tick late, nothing is lost and nothing fires twice, whatever the clock does."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.delivery.wheel import SHIFTS, TICK_NS, Wheel

START = 1_700_000_000 * 10**9
HOUR = 3_600 * 10**9
YEAR = 365 * 24 * HOUR


class Owner:
    """A wheel and the times that it does not keep itself."""

    def __init__(self, start_ns: int = START) -> None:
        self.dues: dict[int, int] = {}
        self.wheel = Wheel(start_ns=start_ns, dues_of=self.dues_of)
        self.looked_up = 0

    def dues_of(self, offsets: BitMap64) -> "array[int]":
        self.looked_up += len(offsets)
        return array("q", (self.dues[offset] for offset in offsets))

    def add(self, offset: int, due_ns: int) -> None:
        self.dues[offset] = due_ns
        self.wheel.add(offset, due_ns)

    def add_many(self, dues: dict[int, int]) -> None:
        self.dues |= dues
        self.wheel.add_many(array("Q", dues.keys()), array("q", dues.values()))

    def advance(self, now_ns: int) -> list[int]:
        return list(self.wheel.advance(now_ns))

    def run_until(self, end_ns: int) -> dict[int, int]:
        """When each fires if the wheel is called exactly when it asks for it."""
        fired: dict[int, int] = {}
        while (next_ns := self.wheel.next_ns) is not None and next_ns <= end_ns:
            for offset in self.advance(next_ns):
                assert offset not in fired
                fired[offset] = next_ns
        return fired


@pytest.fixture
def owner() -> Owner:
    return Owner()


def test_an_empty_wheel_asks_for_nothing(owner: Owner) -> None:
    assert owner.wheel.next_ns is None
    assert len(owner.wheel) == 0
    assert owner.advance(START + YEAR) == []


@pytest.mark.parametrize("delay_ns", [1, TICK_NS - 1, TICK_NS, TICK_NS + 1, 255 * TICK_NS, 256 * TICK_NS])
def test_a_delay_fires_at_the_tick_that_begins_next(owner: Owner, delay_ns: int) -> None:
    owner.add(7, START + delay_ns)

    fired = owner.run_until(START + HOUR)

    assert START + delay_ns <= fired[7] < START + delay_ns + TICK_NS


def test_a_delay_shorter_than_a_tick_fires_one_tick_later_and_not_a_revolution(owner: Owner) -> None:
    owner.add(7, START + 1)

    assert owner.advance(START) == []
    assert owner.advance(START + TICK_NS - 1) == []
    assert owner.advance(START + TICK_NS) == [7]


def test_within_the_present_tick_too(owner: Owner) -> None:
    owner.advance(START + TICK_NS // 2)
    owner.add(7, START + TICK_NS // 2 + 1)

    assert owner.wheel.next_ns == START + TICK_NS
    assert owner.advance(START + TICK_NS) == [7]


@pytest.mark.parametrize("due_ns", [START, START - 1, START - YEAR, 0, -1, -(2**63) + 1])
def test_what_is_due_in_the_past_fires_at_the_next_advance(owner: Owner, due_ns: int) -> None:
    owner.add(7, due_ns)

    assert owner.wheel.next_ns == START
    assert owner.advance(START) == [7]
    assert owner.advance(START) == []


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("ticks", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("start", [-1, 0, 1])
def test_it_fires_in_time_at_every_boundary_of_a_level(shift: int, ticks: int, start: int) -> None:
    boundary = ((START // TICK_NS >> SHIFTS[-1]) + 1) << SHIFTS[-1]
    owner = Owner((boundary + start) * TICK_NS)
    due_ns = (boundary + (1 << shift) + ticks) * TICK_NS
    owner.add(7, due_ns)

    assert owner.run_until(due_ns + YEAR) == {7: max(due_ns, (boundary + start) * TICK_NS)}


@pytest.mark.parametrize("shift", SHIFTS)
def test_it_fires_in_time_if_it_is_called_at_every_tick_over_a_boundary(shift: int) -> None:
    boundary = ((START // TICK_NS >> shift) + 1) << shift
    owner = Owner(START)
    owner.add_many({tick + 300: (boundary + tick) * TICK_NS for tick in range(-300, 301)})
    owner.advance((boundary - 301) * TICK_NS)

    for tick in range(-300, 301):
        assert owner.advance((boundary + tick) * TICK_NS) in ([tick + 300], list(range(tick + 301)))
    assert len(owner.wheel) == 0


def test_a_cascade_is_small_and_well_before_anything_of_it_is_due() -> None:
    start = ((START // TICK_NS >> SHIFTS[2]) + 1) << SHIFTS[2]
    owner = Owner(start * TICK_NS)
    owner.add_many({tick: (start + tick) * TICK_NS for tick in range(1, 2_000)})

    for tick in range(1, 1_000):
        owner.looked_up = 0
        assert owner.advance((start + tick) * TICK_NS) == [tick]
        assert owner.looked_up <= 64
        spread = [slot.min() for slot in owner.wheel.in_order() if len(slot) == 1]
        assert len(spread) >= 190


def test_there_is_no_upper_limit(owner: Owner) -> None:
    owner.add(7, 2**63 - 1)
    owner.add(8, START + 100 * YEAR)

    assert owner.run_until(2**64) == {8: START + 100 * YEAR, 7: -(-(2**63 - 1) // TICK_NS) * TICK_NS}


def test_a_jump_of_years_costs_a_look_at_each_slot(owner: Owner) -> None:
    owner.add_many({offset: START + offset * 3 * HOUR for offset in range(1, 2_001)})
    owner.looked_up = 0

    assert owner.advance(START + YEAR) == list(range(1, 2_001))
    assert owner.looked_up == 0  # no slot had to be spread: all of them were jumped over


def test_a_jump_into_a_slot_fires_only_what_is_due(owner: Owner) -> None:
    owner.add_many({minute: START + minute * HOUR // 60 for minute in range(1, 10_000)})

    assert owner.advance(START + 50 * HOUR) == list(range(1, 3_001))
    assert owner.advance(START + 50 * HOUR) == []
    assert owner.advance(START + 51 * HOUR) == list(range(3_001, 3_061))


@pytest.mark.parametrize("back_ns", [TICK_NS, 5 * 10**9, HOUR, 30 * 24 * HOUR, START])
def test_a_clock_that_is_set_back_makes_nothing_early_lost_or_double(owner: Owner, back_ns: int) -> None:
    owner.add_many({offset: START + offset * HOUR // 7 for offset in range(1, 500)})
    assert owner.advance(START + HOUR) == list(range(1, 8))

    now_ns = START + HOUR - back_ns
    assert owner.advance(now_ns) == []
    owner.add(1_000, now_ns + 2 * TICK_NS)  # long past for the clock that was
    assert owner.advance(now_ns + TICK_NS) == []
    assert owner.advance(now_ns + 3 * TICK_NS) == [1_000]

    fired = owner.run_until(START + YEAR)
    assert fired.keys() == set(range(8, 500))
    assert all(owner.dues[offset] <= at_ns < owner.dues[offset] + TICK_NS for offset, at_ns in fired.items())


def test_what_waits_for_the_next_advance_waits_again_if_the_clock_is_set_back(owner: Owner) -> None:
    owner.advance(START + HOUR)
    owner.add(7, START + HOUR // 2)

    assert owner.advance(START) == []
    assert owner.run_until(START + HOUR) == {7: START + HOUR // 2}


def test_removed_means_never_fired(owner: Owner) -> None:
    for offset, delay_ns in enumerate((0, 1, 10**9, HOUR, 24 * HOUR, YEAR)):
        owner.add(offset, START + delay_ns)
        assert owner.wheel.remove(offset, START + delay_ns)
        assert not owner.wheel.remove(offset, START + delay_ns)

    assert owner.wheel.next_ns is None
    assert owner.advance(START + 2 * YEAR) == []


def test_only_what_waits_for_that_time_is_removed(owner: Owner) -> None:
    owner.add(7, START + HOUR)

    assert not owner.wheel.remove(8, START + HOUR)
    assert not owner.wheel.remove(7, START + 2 * HOUR)
    assert not owner.wheel.remove(7, START)
    assert len(owner.wheel) == 1


def test_what_has_cascaded_can_be_removed(owner: Owner) -> None:
    owner.add_many({1: START + 10 * HOUR, 2: START + 10 * HOUR + 1})
    for now_ns in (START + 9 * HOUR, START + 10 * HOUR - 10**9, START + 10 * HOUR - TICK_NS):
        owner.advance(now_ns)

    assert owner.wheel.remove(1, START + 10 * HOUR)
    assert owner.advance(START + 11 * HOUR) == [2]


def test_what_a_slot_has_given_out_can_no_longer_be_removed(owner: Owner) -> None:
    owner.add_many(dict.fromkeys(range(10), START + TICK_NS))

    for offset in owner.wheel.advance(START + TICK_NS):  # while the slot drains
        assert not owner.wheel.remove(offset, START + TICK_NS)
        owner.add(offset + 100, START + TICK_NS)
    assert owner.advance(START + TICK_NS) == list(range(100, 110))


def test_many_are_removed_like_one(owner: Owner) -> None:
    dues = {offset: START + offset * HOUR for offset in range(-5, 400)} | {1_000: START, 1_001: START}
    owner.add_many({offset + 10: due_ns for offset, due_ns in dues.items()})
    gone = {offset + 10: due_ns for offset, due_ns in dues.items() if offset % 2 or offset == 1_000}

    owner.wheel.remove_many(array("Q", gone.keys()), array("q", gone.values()))
    owner.wheel.remove_many(array("Q"), array("q"))

    assert owner.advance(START + YEAR) == sorted(offset + 10 for offset in dues if not (offset % 2 or offset == 1_000))


def test_a_slot_whose_last_was_removed_asks_for_nothing(owner: Owner) -> None:
    dues = {offset: START + (1 << 3 * offset) * TICK_NS for offset in range(10)}
    owner.add_many(dues)

    owner.wheel.remove_many(array("Q", dues.keys()), array("q", dues.values()))

    assert owner.wheel.next_ns is None


def test_sets_come_in_the_order_of_time(owner: Owner) -> None:
    delays = [-5, 0, TICK_NS, 3 * TICK_NS, 10**9, 60 * 10**9, HOUR, 24 * HOUR, YEAR, 3 * YEAR]
    owner.add_many({offset: START + delay_ns for offset, delay_ns in enumerate(delays)})

    assert [offset for slot in owner.wheel.in_order() for offset in slot] == list(range(len(delays)))


delays = st.one_of(
    st.integers(-3, 600),
    st.builds(lambda shift, by: (1 << shift) + by, st.sampled_from(SHIFTS), st.integers(-2, 2)),
    st.integers(0, 1 << 28),
).map(lambda ticks: ticks * TICK_NS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), delays, st.integers(0, TICK_NS - 1)),
        st.tuples(st.just("add_many"), st.lists(delays, max_size=12), st.integers(0, TICK_NS - 1)),
        st.tuples(st.just("remove"), st.integers(0, 60), st.none()),
        st.tuples(st.just("remove_many"), st.integers(-1, 20), st.none()),
        st.tuples(st.just("advance"), delays, st.integers(0, TICK_NS - 1)),
        st.tuples(st.just("back"), delays, st.integers(0, TICK_NS - 1)),
        st.tuples(st.just("next"), st.none(), st.none()),
    ),
    max_size=60,
)


@given(steps, st.integers(0, 1 << 27))
def test_it_does_what_a_dict_of_times_does(steps: list[tuple[str, object, object]], start_tick: int) -> None:
    now_ns = START + start_tick * TICK_NS
    owner = Owner(now_ns)
    waiting: dict[int, int] = {}
    count = 0
    for kind, what, more in steps:
        match kind, what, more:
            case "add", int(delay_ns), int(rest_ns):
                waiting[count] = now_ns + delay_ns + rest_ns
                owner.add(count, waiting[count])
                count += 1
            case "add_many", list(delays_ns), int(rest_ns):
                new = {count + place: now_ns + delay_ns + rest_ns for place, delay_ns in enumerate(delays_ns)}
                owner.add_many(new)
                waiting |= new
                count += len(new)
            case "remove", int(offset), _:
                due_ns = owner.dues.get(offset, now_ns)
                assert owner.wheel.remove(offset, due_ns) == (waiting.pop(offset, None) is not None)
            case "remove_many", int(offset), _:
                gone = {one: due_ns for one, due_ns in waiting.items() if one > offset}
                owner.wheel.remove_many(array("Q", gone.keys()), array("q", gone.values()))
                waiting = {one: due_ns for one, due_ns in waiting.items() if one <= offset}
            case _:
                if kind == "next":
                    now_ns = max(now_ns, owner.wheel.next_ns or now_ns)
                else:
                    assert isinstance(what, int)
                    assert isinstance(more, int)
                    now_ns += what + more if kind == "advance" else -what - more
                tick = now_ns // TICK_NS
                due = sorted(offset for offset, due_ns in waiting.items() if -(-due_ns // TICK_NS) <= tick)
                assert owner.advance(now_ns) == due
                for offset in due:
                    del waiting[offset]
        next_ns = owner.wheel.next_ns
        assert len(owner.wheel) == len(waiting)
        assert (next_ns is None) == (not waiting)
        assert next_ns is None or next_ns <= max(now_ns, -(-min(waiting.values()) // TICK_NS) * TICK_NS)
    fired = owner.run_until(2**64)
    assert fired == {one: max(-(-due_ns // TICK_NS), now_ns // TICK_NS) * TICK_NS for one, due_ns in waiting.items()}
