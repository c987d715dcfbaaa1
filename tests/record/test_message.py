import copy
import os
import pickle
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.header import TIMESTAMP_MIN, Flags, Priority
from goqueue.record.headers import encode_headers
from goqueue.record.message import StoredMessage
from tests.record.batches import TIME, needs_c, stamped

ORDERS = TopicPartition("orders", 3)


def message(**changes):
    fields = {
        "origin": ORDERS,
        "offset": 41,
        "timestamp_ns": TIME,
        "priority_code": Priority.NORMAL,
        "flags": 0,
        "key": b"key",
        "value": b"value",
        "encoded_headers": None,
    }
    return StoredMessage(**(fields | changes))


def test_a_decoded_message_knows_all_about_itself():
    records = stamped(
        [b"value"],
        keys=[b"key"],
        headers=[{"trace": "abc", "raw": b"\xff"}],
        priorities=Priority.HIGH,
        first_offset=41,
        timestamp=1_700_000_000_123_456_789,
    )

    (decoded,) = kernel.decode(records, ORDERS, StoredMessage)

    assert (decoded.topic, decoded.partition, decoded.offset) == ("orders", 3, 41)
    assert decoded.timestamp == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    assert decoded.timestamp_ns == 1_700_000_000_123_456_789
    assert (decoded.key, decoded.value) == (b"key", b"value")
    assert decoded.headers == {"trace": "abc", "raw": "\udcff"}
    assert decoded.priority is Priority.HIGH
    assert decoded.tombstone is False


def test_a_message_without_key_and_headers_says_so():
    (decoded,) = kernel.decode(stamped([b""]), ORDERS, StoredMessage)

    assert decoded.key is None
    assert decoded.headers == {}
    assert decoded.value == b""
    assert not decoded.tombstone


def test_a_tombstone_has_an_empty_value():
    (decoded,) = kernel.decode(stamped([None], keys=[b"key"]), ORDERS, StoredMessage)

    assert decoded.tombstone
    assert decoded.value == b""


@pytest.mark.parametrize(
    ("time_ns", "time"),
    [
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        (2**63 - 1, datetime(2262, 4, 11, 23, 47, 16, 854775, tzinfo=UTC)),
        (TIMESTAMP_MIN, datetime(1677, 9, 21, 0, 12, 43, 145224, tzinfo=UTC)),
    ],
)
def test_any_time_of_64_bits_is_a_datetime_in_utc(time_ns, time):
    assert message(timestamp_ns=time_ns).timestamp == time


def test_the_value_is_read_as_text_or_json():
    assert message(value="Grüße".encode()).text() == "Grüße"
    assert message(value=b'{"a": [1, null]}').json() == {"a": [1, None]}


def test_a_value_that_is_no_text_says_so():
    with pytest.raises(UnicodeDecodeError):
        message(value=b"\xff").text()


def test_how_a_message_was_published_is_not_among_its_headers():
    times = {"gq-expires-at": "1700000000000001999", "gq-created": "1700000000000000999"}
    own = {"gq-producer": "7:0:0:1", "gq-deliver-at": "5", **times}

    given = message(encoded_headers=encode_headers({**own, "a": "b", "gq-origin": "orders:0:1"}))

    assert given.headers == {"a": "b", "gq-origin": "orders:0:1"}
    assert given.raw_headers == [("a", b"b"), ("gq-origin", b"orders:0:1")]
    assert given.expires_at == datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC)
    assert given.created_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def test_raw_headers_are_as_they_are_stored_and_headers_show_them_as_text():
    pairs = [("b", b"1"), ("a", None), ("\udcff", b"\xfe"), ("b", b"2")]

    given = message(encoded_headers=encode_headers(pairs))

    assert given.raw_headers == pairs
    assert given.headers == {"b": "2", "a": "", "\udcff": "\udcfe"}
    assert message().raw_headers == []


@pytest.mark.parametrize("headers", [{}, {"a": "b"}, {"gq-expires-at": "soon"}, {"gq-expires-at": b"\xff"}])
def test_a_message_without_a_time_to_live_does_not_expire(headers):
    assert message(encoded_headers=encode_headers(headers) or None).expires_at is None


@pytest.mark.parametrize("headers", [{}, {"gq-created": None}, {"gq-created": "now"}])
def test_a_message_without_a_time_of_its_producer_has_none(headers):
    assert message(encoded_headers=encode_headers(headers) or None).created_at is None


def test_changing_the_headers_dict_changes_no_message():
    given = message(encoded_headers=b"\0\x01\0\x01a\0\x01b")

    given.headers["a"] = "c"

    assert given.headers == {"a": "b"}


def test_a_message_cannot_be_changed():
    given = message()

    for name in ("offset", "value", "topic", "headers", "anything"):
        with pytest.raises(AttributeError):
            setattr(given, name, None)


def test_messages_are_equal_when_all_of_them_is_equal():
    assert message() == message()
    assert hash(message()) == hash(message())
    assert len({message(), message()}) == 1
    for change in (
        {"origin": TopicPartition("orders", 4)},
        {"offset": 42},
        {"timestamp_ns": 0},
        {"priority_code": 0},
        {"flags": Flags.COMPRESSED},
        {"key": None},
        {"value": b""},
        {"encoded_headers": b"\0\x01\0\0\0\0"},
    ):
        assert message() != message(**change)


def test_a_message_equals_nothing_else():
    assert message() != ORDERS
    assert message() != "message"


def test_a_copy_is_equal():
    given = message(encoded_headers=b"\0\x01\0\x01a\0\x01b")

    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(given, protocol)) == given
    assert copy.copy(given) == copy.deepcopy(given) == given


def test_a_copy_of_a_subclass_is_of_that_class():
    class Order(StoredMessage):
        __slots__ = ()

    assert type(copy.copy(Order(ORDERS, 1, 2, 3, 0, None, b"", None))) is Order


@needs_c
@pytest.mark.parametrize("other", ["c", "python"])
def test_a_message_pickled_with_one_kernel_is_read_with_the_other(other):
    given = message(flags=Flags.HAS_HEADERS, encoded_headers=b"\0\x01\0\x01a\0\x01b")
    echo = (
        "import pickle, sys; from goqueue.record import kernel; message = pickle.load(sys.stdin.buffer);"
        " pickle.dump((kernel.IMPLEMENTATION, repr(message), message), sys.stdout.buffer)"
    )

    answer = subprocess.run(
        [sys.executable, "-c", echo],
        input=pickle.dumps(given),
        env=os.environ | {"GOQUEUE_KERNEL": other},
        stdout=subprocess.PIPE,
        check=True,
    )

    assert pickle.loads(answer.stdout) == (other, repr(given), given)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "<StoredMessage orders/3 @ 41, key=b'key', value=b'value'>"),
        ({"key": None, "priority_code": 0}, "<StoredMessage orders/3 @ 41, value=b'value', priority=CRITICAL>"),
        ({"flags": Flags.TOMBSTONE, "value": b""}, "<StoredMessage orders/3 @ 41, key=b'key', tombstone>"),
        ({"value": b"x" * 100}, f"<StoredMessage orders/3 @ 41, key=b'key', value=b'{'x' * 64}'... (100 bytes)>"),
        (
            {"encoded_headers": b"\0\x01\0\x01a\0\x01b"},
            "<StoredMessage orders/3 @ 41, key=b'key', value=b'value', headers={'a': 'b'}>",
        ),
        ({"origin": None, "key": None}, "<StoredMessage origin=None @ 41, value=b'value'>"),
        ({"origin": ("orders", 3), "key": None}, "<StoredMessage origin=('orders', 3) @ 41, value=b'value'>"),
        ({"key": None, "priority_code": 5}, "<StoredMessage orders/3 @ 41, value=b'value', priority_code=5>"),
        (
            {"key": None, "encoded_headers": b"\0\x01"},
            "<StoredMessage orders/3 @ 41, value=b'value', encoded_headers=b'\\x00\\x01'>",
        ),
    ],
)
def test_a_message_shows_what_matters(changes, shown):
    assert repr(message(**changes)) == shown
