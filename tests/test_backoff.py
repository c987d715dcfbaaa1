"""Backoff: it doubles, it ends somewhere, and no two wait alike."""

from hypothesis import given
from hypothesis import strategies as st

from goqueue.backoff import backoff_ns


def waits(count: int, *, jitter: float = 0) -> list[int]:
    return [backoff_ns(attempt, initial_ns=10, max_ns=100, jitter=jitter) for attempt in range(1, count + 1)]


def test_each_wait_is_twice_the_last_one_up_to_the_limit() -> None:
    assert waits(6) == [10, 20, 40, 80, 100, 100]


def test_jitter_takes_off_up_to_half() -> None:
    assert waits(3, jitter=0.5) == [7, 15, 30]
    assert waits(3, jitter=0.999999) == [5, 10, 20]


@given(
    st.integers(1, 10**9),
    st.integers(1, 10**9),
    st.integers(1, 10**12),
    st.floats(0, 1, exclude_max=True),
)
def test_no_wait_is_over_the_limit_or_under_half_of_what_it_should_be(
    attempt: int, initial_ns: int, max_ns: int, jitter: float
) -> None:
    full = backoff_ns(attempt, initial_ns=initial_ns, max_ns=max_ns, jitter=0)

    wait = backoff_ns(attempt, initial_ns=initial_ns, max_ns=max_ns, jitter=jitter)

    assert full <= max_ns
    assert full // 2 <= wait <= full


@given(st.integers(1, 200), st.integers(1, 10**9), st.integers(1, 10**12))
def test_no_wait_is_shorter_than_the_one_before(attempt: int, initial_ns: int, max_ns: int) -> None:
    first, second = (backoff_ns(one, initial_ns=initial_ns, max_ns=max_ns, jitter=0) for one in (attempt, attempt + 1))

    assert first <= second
