"""Which dead letters a filter means: what is quick must never say no where what is thorough says yes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.delivery.dead_letter import Death, dead_headers
from goqueue.delivery.dead_letter_filter import DeadLetterMatcher, OriginTopics, read_dead_letter
from goqueue.record.header import OFFSET_MAX
from goqueue.record.headers import decode_headers, encode_headers
from goqueue.wire.reports import DeadLetterFilter

NOON_NS = 1_704_110_400 * 10**9
HEADERS = dead_headers(
    {"color": "red"},
    Death("REJECTED", "no such order: 17", "billing", "m-1", 2, "orders:1:42", NOON_NS - 10**9, NOON_NS),
)

words = st.sampled_from(["", "a", "b", "ab", "red", "gq-reason", "é", "\udcff"])
headers_of_letters = st.dictionaries(
    st.sampled_from(["color", "gq-reason", "gq-group", "gq-error", "gq-attempts", "gq-dead-at", "gq-redrives"]),
    st.one_of(words, st.sampled_from(["1", "2", "30", "1970-01-01T00:00:00.000000005Z", "x\0\x05color\0\x03red"])),
)
keys = st.one_of(st.none(), st.binary(max_size=2))
filters = st.builds(
    DeadLetterFilter,
    reason=st.none() | words,
    group=st.none() | words,
    key=keys,
    key_prefix=st.none() | st.binary(max_size=1),
    headers=st.dictionaries(st.sampled_from(["color", "gq-error", "shape"]), words, max_size=1),
    error_contains=st.none() | words,
    from_time_ns=st.none() | st.integers(0, 8),
    to_time_ns=st.none() | st.integers(0, 8),
    partition=st.none() | st.integers(0, 1),
    offsets=st.none() | st.lists(st.integers(-1, 5), max_size=3),
    min_attempts=st.none() | st.integers(0, 3),
)


def naive(wanted: DeadLetterFilter, partition: int, offset: int, key: bytes | None, headers: dict[str, str]) -> bool:
    """The same, field by field, on the headers as they are, for letters stored at time 3."""
    attempts = headers.get("gq-attempts", "")
    dead_at = {"": 3, "1": 10**9, "2": 2 * 10**9, "30": 30 * 10**9, "1970-01-01T00:00:00.000000005Z": 5}
    dead_at_ns = dead_at.get(headers.get("gq-dead-at", ""), 3)
    checks = [
        wanted.reason in (None, headers.get("gq-reason", "")),
        wanted.group in (None, headers.get("gq-group", "")),
        wanted.key is None or wanted.key == key,
        wanted.key_prefix is None or (key or b"")[: len(wanted.key_prefix)] == wanted.key_prefix,
        wanted.headers.items() <= headers.items(),
        wanted.error_contains is None or headers.get("gq-error", "").find(wanted.error_contains) >= 0,
        wanted.from_time_ns is None or wanted.from_time_ns <= dead_at_ns,
        wanted.to_time_ns is None or wanted.to_time_ns > dead_at_ns,
        wanted.partition in (None, partition),
        wanted.offsets is None or offset in wanted.offsets,
        wanted.min_attempts is None or (int(attempts) if attempts in ("1", "2", "30") else 0) >= wanted.min_attempts,
    ]
    return all(checks)


@given(filters, st.integers(0, 1), st.integers(0, 5), keys, headers_of_letters)
def test_a_filter_means_what_every_field_of_it_means(
    wanted: DeadLetterFilter, partition: int, offset: int, key: bytes | None, headers: dict[str, str]
) -> None:
    raw = encode_headers(headers)
    letter = read_dead_letter(headers, timestamp_ns=3)
    ready = DeadLetterMatcher(wanted)

    is_meant = ready.matches(key, headers, letter) and offset in ready.among(partition, BitMap64([offset]))

    assert is_meant == naive(wanted, partition, offset, key, headers)
    if is_meant:
        assert ready.may_match(key, raw)


def test_a_filter_without_fields_means_every_letter() -> None:
    ready = DeadLetterMatcher(DeadLetterFilter())

    assert ready.among(3, BitMap64([1, 7])) == BitMap64([1, 7])
    assert ready.may_match(None, None)
    assert ready.matches(None, {}, read_dead_letter({}, timestamp_ns=0))


def test_a_letter_tells_what_it_died_of() -> None:
    letter = read_dead_letter(HEADERS, timestamp_ns=0)

    assert letter.reason == "REJECTED"
    assert letter.error == "no such order: 17"
    assert (letter.group, letter.member, letter.attempts) == ("billing", "m-1", 2)
    assert letter.origin == ("orders", 1, 42)
    assert letter.dead_at_ns == NOON_NS
    assert letter.redrives == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gq-attempts", "many"),
        ("gq-attempts", "-1"),
        ("gq-attempts", "9" * 5_000),
        ("gq-attempts", "\u0663"),
        ("gq-redrives", "9" * 5_000),
        ("gq-origin", "orders"),
        ("gq-origin", "orders:x:1"),
        ("gq-origin", ":0:1"),
        ("gq-dead-at", "yesterday"),
        ("gq-dead-at", "9" * 60),
    ],
)
def test_a_letter_with_nonsense_in_its_headers_counts_as_one_without_them(name: str, text: str) -> None:
    letter = read_dead_letter({name: text}, timestamp_ns=5)

    assert (letter.attempts, letter.redrives, letter.origin, letter.dead_at_ns) == (0, 0, None, 5)


def test_letters_that_cannot_match_are_passed_over_without_taking_their_headers_apart() -> None:
    raw = encode_headers(HEADERS)

    for wanted in (
        DeadLetterFilter(reason="TIMEOUT"),
        DeadLetterFilter(reason="REJECT"),
        DeadLetterFilter(group="bill"),
        DeadLetterFilter(headers={"color": "re"}),
        DeadLetterFilter(error_contains="no such customer"),
        DeadLetterFilter(key=b"k"),
        DeadLetterFilter(key_prefix=b"k"),
    ):
        assert not DeadLetterMatcher(wanted).may_match(b"c-1", raw)


def test_the_text_of_one_header_does_not_pass_for_another_header() -> None:
    headers = {"note": "\0\x09gq-reason\0\x07TIMEOUT"}
    ready = DeadLetterMatcher(DeadLetterFilter(reason="TIMEOUT"))
    raw = encode_headers(headers)

    assert ready.may_match(None, raw)
    assert not ready.matches(None, decode_headers(raw), read_dead_letter(headers, timestamp_ns=0))


@pytest.mark.parametrize(
    "wanted",
    [
        DeadLetterFilter(reason="\ud800"),
        DeadLetterFilter(headers={"x" * 70_000: "y"}),
        DeadLetterFilter(headers={"x": "y" * 70_000}),
        DeadLetterFilter(error_contains="\udfff\ud800"),
        DeadLetterFilter(offsets=[]),
        DeadLetterFilter(offsets=[-1, OFFSET_MAX + 1, 2**80]),
    ],
)
def test_what_no_letter_can_have_means_none(wanted: DeadLetterFilter) -> None:
    assert not DeadLetterMatcher(wanted).among(0, BitMap64([0, 1, 2]))


def test_times_are_from_the_first_to_before_the_last() -> None:
    letter = read_dead_letter(HEADERS, timestamp_ns=0)

    def means(from_ns: int | None, to_ns: int | None) -> bool:
        wanted = DeadLetterFilter(from_time_ns=from_ns, to_time_ns=to_ns)
        return DeadLetterMatcher(wanted).matches(None, HEADERS, letter)

    assert means(NOON_NS, NOON_NS + 1)
    assert not means(NOON_NS + 1, None)
    assert not means(None, NOON_NS)


@pytest.mark.parametrize(
    ("origins", "topics"),
    [
        (OriginTopics(), ["orders", "orders2", "pay", ""]),
        (OriginTopics(only="orders"), ["orders"]),
        (OriginTopics(without=frozenset(["orders", "gone"])), ["orders2", "pay", ""]),
    ],
)
def test_topics_that_share_a_dead_letter_topic_match_their_own(origins: OriginTopics, topics: list[str]) -> None:
    matcher = DeadLetterMatcher(DeadLetterFilter(), origins)
    matching = []
    for topic in ("orders", "orders2", "pay", ""):
        headers = {"gq-origin": f"{topic}:0:7", "x": "orders"} if topic else {"x": "orders"}
        may_match = matcher.may_match(None, encode_headers(headers))
        if matcher.matches(None, headers, read_dead_letter(headers, timestamp_ns=0)):
            assert may_match
            matching.append(topic)

    assert matching == topics
