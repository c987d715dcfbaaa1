from hypothesis import given
from hypothesis import strategies as st

from goqueue.delivery.due_lately import PARTS, DueLately

RETENTION = 800


def test_nothing_is_kept_where_nothing_was_due() -> None:
    assert DueLately().first(now_ns=0) is None


def test_what_was_due_is_kept_for_the_time_of_retention() -> None:
    lately = DueLately()
    lately.note(5, now_ns=100, retention_ns=RETENTION)

    assert lately.first(now_ns=100 + RETENTION - 1) == 5
    assert lately.first(now_ns=100 + RETENTION) is None


def test_the_lowest_of_what_was_due_at_about_the_same_time_counts() -> None:
    lately = DueLately()
    for offset, now in ((9, 0), (3, 10), (7, 20)):
        lately.note(offset, now_ns=now, retention_ns=RETENTION)

    assert lately.first(now_ns=RETENTION + 19) == 3
    assert lately.first(now_ns=RETENTION + 20) is None


def test_what_was_due_earlier_is_let_go_earlier() -> None:
    lately = DueLately()
    lately.note(3, now_ns=0, retention_ns=RETENTION)
    lately.note(7, now_ns=RETENTION // PARTS, retention_ns=RETENTION)

    assert lately.first(now_ns=RETENTION - 1) == 3
    assert lately.first(now_ns=RETENTION) == 7


@given(due=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 1_000)), max_size=100))
def test_each_is_kept_for_long_enough_and_not_much_longer(due: list[tuple[int, int]]) -> None:
    lately, now = DueLately(), 0
    times: list[tuple[int, int]] = []
    for pause, offset in due:
        now += pause
        lately.note(offset, now_ns=now, retention_ns=RETENTION)
        times.append((now, offset))
        must = [kept for at, kept in times if at + RETENTION > now]
        may = [kept for at, kept in times if at + RETENTION + RETENTION // PARTS > now]

        first = lately.first(now_ns=now)

        assert first is not None
        assert min(may) <= first <= min(must)
        assert len(lately._kept) <= PARTS + 2
