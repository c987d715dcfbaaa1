import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import CorruptRecord, InvalidMessage, MessageTooLarge
from goqueue.record import headers
from goqueue.record.headers import as_text, decode_headers, encode_headers, parse_time, split_headers
from tests.record.batches import header_dicts, header_texts, timestamps


def test_headers_have_these_bytes_and_no_others():
    assert encode_headers({"a": "1", "größe": b"\xff"}) == (
        b"\0\x02" + b"\0\x01a" + b"\0\x011" + b"\0\x07gr\xc3\xb6\xc3\x9fe" + b"\0\x01\xff"
    )


def test_no_headers_are_no_bytes():
    assert encode_headers({}) == b""
    assert decode_headers(b"") == {}


def test_the_reserved_names_carry_the_reserved_prefix():
    assert headers.DELIVER_AT == "gq-deliver-at"
    assert headers.EXPIRES_AT == "gq-expires-at"
    assert all(name.startswith(headers.RESERVED_PREFIX) for name in (headers.DELIVER_AT, headers.EXPIRES_AT))


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"]))
    )
)
def test_text_comes_back_as_it_was(given_headers):
    assert decode_headers(encode_headers(given_headers)) == given_headers


@given(st.dictionaries(st.binary(max_size=20), st.binary(max_size=20), max_size=5))
def test_any_bytes_survive_being_decoded_and_encoded_again(pairs):
    escaped = {name.decode("utf-8", "surrogateescape"): value for name, value in pairs.items()}
    raw = encode_headers(escaped)

    assert split_headers(raw) == list(pairs.items())
    assert encode_headers(decode_headers(raw)) == raw


@given(header_dicts)
def test_order_is_kept(given_headers):
    assert list(decode_headers(encode_headers(given_headers))) == list(given_headers)


def test_a_header_without_a_value_differs_from_one_with_an_empty_value():
    encoded = encode_headers({"null": None, "empty": b""})

    assert encoded == b"\0\x02" + b"\0\x04null\xff\xff" + b"\0\x05empty\0\0"
    assert split_headers(encoded) == [(b"null", None), (b"empty", b"")]
    assert decode_headers(encoded) == {"null": "", "empty": ""}


@given(st.lists(st.tuples(header_texts, st.none() | st.binary(max_size=9)), max_size=5))
def test_pairs_keep_their_order_and_names_that_stand_twice(pairs):
    assert [(as_text(name), value) for name, value in split_headers(encode_headers(pairs))] == pairs


def test_where_a_name_stands_twice_the_last_one_wins():
    assert decode_headers(b"\0\x02" + b"\0\x01a\0\x011" + b"\0\x01a\0\x012") == {"a": "2"}


@pytest.mark.parametrize("size", [0xFFFF - 6, 100_000])
def test_headers_over_64_kib_are_refused_with_their_size(size):
    with pytest.raises(MessageTooLarge) as caught:
        encode_headers({"n": bytes(size)})

    assert (caught.value.field, caught.value.size, caught.value.limit) == ("headers", size + 7, 0xFFFF)


def test_headers_of_64_kib_are_taken():
    assert len(encode_headers({"n": bytes(0xFFFF - 7)})) == 0xFFFF


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({7: "a"}, "header name must be str, got int"),
        ({b"a": "a"}, "header name must be str, got bytes"),
        ({"a": bytearray()}, "header value must be str, bytes or None, got bytearray"),
        (["ab"], "headers must be a dict or a list of pairs"),
        ([("a", "b", "c")], "headers must be a dict or a list of pairs"),
        ({"a": "\ud800"}, "headers must be text that UTF-8 can hold"),
    ],
)
def test_wrong_headers_are_refused_with_the_reason(wrong, reason):
    with pytest.raises(InvalidMessage) as caught:
        encode_headers(wrong)

    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("raw", "position"),
    [
        (b"\0", 0),
        (b"\0\0", 0),
        (b"\0\x01", 2),
        (b"\0\x01\0\x05a\0\0", 2),
        (b"\0\x01\0\x01a\0", 5),
        (b"\0\x01\0\x01a\0\x02b", 5),
        (b"\0\x01\0\x01a\xff\xff!", 7),
        (b"\0\x01\xff\xff\0\0", 2),
        (b"\0\x02\0\x01a\0\x01b", 8),
        (b"\0\x01\0\x01a\0\x01b!", 8),
    ],
)
def test_malformed_headers_are_refused_with_the_position(raw, position):
    with pytest.raises(CorruptRecord) as caught:
        decode_headers(raw)

    assert caught.value.position == position


@given(st.binary(max_size=40))
def test_whatever_can_be_decoded_is_the_one_way_to_write_it(raw):
    try:
        pairs = split_headers(raw)
    except CorruptRecord:
        return

    assert encode_headers([(as_text(name), value) for name, value in pairs]) == raw


@given(timestamps)
def test_a_time_is_read_as_it_is_written(time_ns):
    assert parse_time(str(time_ns).encode()) == time_ns


@pytest.mark.parametrize("raw", [b"", b"-", b"+1", b" 1", b"1_0", b"1.0", b"0x1", b"9223372036854775808", b"1" * 20])
def test_what_is_not_a_decimal_number_of_64_bits_is_no_time(raw):
    assert parse_time(raw) is None
