import math
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.runtime.adaptive_spin import CPU_LIMIT, MISSES_MAX, AdaptiveSpin, processors_allowed, spin_budget_ns

LENGTH = 100


def test_a_request_before_the_spin_ends_prolongs_it() -> None:
    spin = AdaptiveSpin(LENGTH)

    assert spin.start(0)
    assert spin.should_spin(LENGTH - 1)
    assert not spin.start(LENGTH - 1)  # it spins already
    assert spin.should_spin(2 * LENGTH - 2)
    assert not spin.should_spin(2 * LENGTH - 1)
    assert not spin.is_spinning


def test_a_spin_of_no_length_never_starts() -> None:
    spin = AdaptiveSpin(0)

    assert not any(spin.start(now) for now in range(100))
    assert not spin.is_spinning


def begun(spin: AdaptiveSpin, requests: int, pause: int) -> list[int]:
    """The requests after which it spins, though each comes a pause after the one before."""
    found = []
    for number in range(requests):
        if spin.start(number * pause):
            found.append(number)
            assert not spin.should_spin((number + 1) * pause)
    return found


def test_spins_in_which_nothing_arrives_become_rare() -> None:
    found = begun(AdaptiveSpin(LENGTH), 1_000, 2 * LENGTH)

    assert found[:5] == [0, 2, 6, 14, 30]
    assert {later - earlier for earlier, later in pairwise(found[6:])} == {2**MISSES_MAX}


def test_after_a_spin_that_paid_off_the_next_one_comes_soon() -> None:
    spin = AdaptiveSpin(LENGTH)
    begun(spin, 1_000, 2 * LENGTH)
    now = 1_000_000
    while not spin.start(now):
        now += 2 * LENGTH
    spin.start(now + 1)
    assert not spin.should_spin(now + 1 + LENGTH)

    assert begun(spin, 3, 2 * LENGTH) == [1]


@given(pauses=st.lists(st.integers(0, 3 * LENGTH), max_size=300))
def test_every_spin_ends(pauses: list[int]) -> None:
    spin = AdaptiveSpin(LENGTH)
    now = 0
    for pause in pauses:
        was_on = spin.is_spinning
        assert spin.start(now) <= (not was_on)
        until = now + LENGTH
        now += pause
        if spin.is_spinning:
            assert spin.should_spin(now) == (now < until)
    assert not spin.should_spin(now + LENGTH)
    assert not spin.is_spinning


def test_a_single_processor_is_never_kept_busy() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert spin_budget_ns(LENGTH) == 0
    finally:
        os.sched_setaffinity(0, before)
    is_free = len(before) > 1 and processors_allowed(CPU_LIMIT) > 1
    assert spin_budget_ns(LENGTH) == (LENGTH if is_free else 0)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [("max 100000\n", math.inf), ("50000 100000\n", 0.5), ("400000 100000", 4), ("", math.inf), ("1 0", math.inf)],
)
def test_a_container_says_how_many_processors_it_may_use(tmp_path: Path, text: str, allowed: float) -> None:
    limit = tmp_path / "cpu.max"
    limit.write_text(text)

    assert processors_allowed(str(limit)) == allowed


def test_outside_of_containers_all_processors_may_be_used(tmp_path: Path) -> None:
    assert processors_allowed(str(tmp_path / "missing")) == math.inf
