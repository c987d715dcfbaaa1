"""The headers of dead letters, and of those that are put back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.delivery.dead_letter import (
    ATTEMPTS,
    DEAD_AT,
    ERROR,
    GROUP,
    ORIGIN,
    REASON,
    REDRIVES,
    Death,
    as_stored,
    dead_headers,
    origin_of,
    parse_origin,
    redriven_headers,
    redrives,
)
from goqueue.record import kernel
from goqueue.record.headers import CREATED, DELIVER_AT, EXPIRES_AT, decode_headers, encode_headers

DEATH = Death(
    "REJECTED", "bad", "workers", "c-1", 3, "orders:0:7", 1_704_067_200_000_000_000, 1_704_067_201_000_000_000
)


def test_a_dead_letter_has_its_own_headers_and_the_story() -> None:
    headers = dead_headers({"mine": "yes", DELIVER_AT: "5", EXPIRES_AT: "9", REASON: "old"}, DEATH)

    assert headers["mine"] == "yes"
    assert (headers[REASON], headers[ERROR], headers[GROUP], headers[ATTEMPTS]) == ("REJECTED", "bad", "workers", "3")
    assert (headers[ORIGIN], headers[REDRIVES]) == ("orders:0:7", "0")
    assert DELIVER_AT not in headers
    assert EXPIRES_AT not in headers


def test_one_that_is_put_back_loses_the_story_and_counts() -> None:
    dead = dead_headers({"mine": "yes"}, DEATH)

    once = redriven_headers(dead, "orders.dlq:0:0")
    again = redriven_headers(dead_headers(once, DEATH), "orders.dlq:0:1")

    assert once == {"mine": "yes", ORIGIN: "orders.dlq:0:0", REDRIVES: "1"}
    assert redrives(again) == 2
    assert redrives({REDRIVES: "many"}) == redrives({}) == 0


def test_a_copy_has_the_bytes_the_order_and_the_repetitions_of_the_headers_of_its_message() -> None:
    stored = [("b", None), ("a", b"1"), ("gq-reason", b"old"), ("b", b"\xff"), (CREATED, b"5"), (DELIVER_AT, b"6")]
    encoded = encode_headers(stored)

    kept = as_stored(dead_headers(decode_headers(encoded), DEATH), encoded)

    assert kept[:4] == [("b", None), ("a", b"1"), ("b", b"\xff"), (CREATED, b"5")]
    assert dict(kept[4:]) == dead_headers({}, DEATH)
    assert as_stored({"new": "text"}, None) == [("new", "text")]


def test_a_copy_whose_headers_would_not_fit_has_their_text() -> None:
    encoded = encode_headers([("a", bytes(30_000)), ("a", bytes(35_400))])
    texts = dead_headers(decode_headers(encoded), DEATH)

    assert as_stored(texts, encoded) == [*texts.items()]
    kernel.encode([b"v"], headers=[as_stored(texts, encoded)])


@pytest.mark.parametrize("size", [0, 30_000, 63_000, 64_800, 65_300, 65_400, 65_500])
def test_headers_that_leave_little_room_still_make_a_record(size: int) -> None:
    mine = {"big": "x" * min(size, 60_000), "more": "y" * max(0, size - 60_000)}

    headers = dead_headers(mine, DEATH._replace(error="é" * 5_000))

    kernel.encode([b"v"], headers=[{**headers}])
    assert (headers[REASON], headers[ORIGIN], headers[GROUP]) == ("REJECTED", "orders:0:7", "workers")
    assert headers.get("big") in (None, mine["big"])
    if size <= 60_000:
        assert headers["big"] == mine["big"]
        assert headers[DEAD_AT].startswith("2024-01-01T00:00:01")


@given(
    st.text("ab.-_:", min_size=1, max_size=12).filter(lambda topic: ":" not in topic),
    st.integers(0, 9),
    st.integers(0, 2**62),
)
def test_an_origin_can_be_read_back(topic: str, partition: int, offset: int) -> None:
    assert parse_origin(origin_of(topic, partition, offset)) == (topic, partition, offset)


@pytest.mark.parametrize(
    "text", ["", "a", "a:1", "a:b:1", "a:1:b", ":1:1", "a:1:-1", "a:1:1:1", "a:²:1", "a:1:" + "9" * 20]
)
def test_what_is_no_origin_is_none(text: str) -> None:
    assert parse_origin(text) is None
