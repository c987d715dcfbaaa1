"""Counts of dead letters that are never wrong about what is dead, and never larger than they may be."""

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.delivery.dead_letter_counts import ERROR_CHARACTERS_MAX, ERRORS_MAX, DeadLetterTallies
from goqueue.delivery.dead_letter_filter import OriginTopics

reasons = st.sampled_from(["TIMEOUT", "REJECTED", ""])


@given(
    st.lists(st.tuples(st.booleans(), reasons), max_size=30),
    st.integers(1, 7),
    st.sets(st.integers(0, 29)),
    st.integers(0, 31),
)
def test_the_counts_are_those_of_the_letters_that_are_dead(
    letters: list[tuple[bool, str]], step: int, done: set[int], start: int
) -> None:
    counts = DeadLetterTallies(0)
    there = {offset: reason for offset, (is_there, reason) in enumerate(letters) if is_there}
    for first in range(0, len(letters), step):
        end = min(first + step, len(letters))
        counts.note([(o, {"gq-reason": there[o]}) for o in range(first, end) if o in there], end=end)

    counts.forget_below(start)
    found = counts.dead_letters(start, len(letters)) - BitMap64(done)

    dead = {offset for offset in there if offset >= start and offset not in done}
    assert set(found) == dead
    expected = {reason: [there[offset] for offset in dead].count(reason) for reason in ("TIMEOUT", "REJECTED")}
    assert counts.tally(found).by_reason == {reason: count for reason, count in expected.items() if count}


def test_what_was_not_seen_yet_counts_as_letters_without_texts() -> None:
    counts = DeadLetterTallies(10)
    counts.note([(10, {"gq-group": "g"}), (12, {"gq-group": "g"})], end=13)

    found = counts.dead_letters(0, 20)

    assert list(found) == [10, 12, *range(13, 20)]
    assert counts.tally(found).by_group == {"g": 2}


def test_a_letter_that_could_not_be_put_back_counts_again() -> None:
    counts = DeadLetterTallies(0)
    counts.note([(0, {"gq-error": "e"}), (1, {"gq-error": "e"})], end=2)

    assert counts.tally(BitMap64([1])).by_error == {"e": 1}
    assert counts.tally(BitMap64([0, 1])).by_error == {"e": 2}


def test_retention_past_what_was_seen_is_no_news_of_what_follows() -> None:
    counts = DeadLetterTallies(0)
    counts.note([(0, {})], end=1)

    counts.forget_below(5)

    assert counts.end == 5
    assert list(counts.dead_letters(5, 7)) == [5, 6]


def test_errors_that_are_all_different_do_not_pile_up_and_the_frequent_one_is_counted_in_full() -> None:
    counts = DeadLetterTallies(0)
    total = 20 * ERRORS_MAX
    for offset in range(total):
        error = "the same" if offset % 2 else f"order {offset} is gone"
        counts.note([(offset, {"gq-error": error})], end=offset + 1)

    by_error = counts.tally(counts.dead_letters(0, total)).by_error

    assert len(by_error) == ERRORS_MAX
    assert next(iter(by_error.items())) == ("the same", total // 2)


def test_long_errors_are_counted_by_how_they_begin() -> None:
    counts = DeadLetterTallies(0)
    begin = "x" * ERROR_CHARACTERS_MAX
    counts.note([(0, {"gq-error": begin + "1"}), (1, {"gq-error": begin + "2"})], end=2)

    assert counts.tally(BitMap64([0, 1])).by_error == {begin: 2}


def test_dead_letters_are_counted_for_each_of_the_topics_that_share_them() -> None:
    counts = DeadLetterTallies(0)
    topics = ["a", "b", "a", "", "b"]
    counts.note([(n, {"gq-origin": f"{topic}:0:{n}"} if topic else {}) for n, topic in enumerate(topics)], end=5)

    def of(**origins: object) -> list[int]:
        return list(counts.dead_letters(0, 7, OriginTopics(**origins)))  # type: ignore[arg-type]

    assert of() == [0, 1, 2, 3, 4, 5, 6]
    assert of(only="a") == [0, 2]
    assert of(only="c") == []
    assert of(without=frozenset("b")) == [0, 2, 3, 5, 6]
    counts.forget_below(2)
    assert of(only="a") == [2]
