"""W3C's trace context, and ids that are derived from where a message is and can be taken back to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.record.headers import encode_headers
from goqueue.record.kernel import crc32c
from goqueue.tracing.context import (
    DerivedFrom,
    TraceContext,
    context_in,
    context_of,
    derived_trace_id,
    explicit_context,
    format_traceparent,
    invert,
    is_trace_id,
    kept_tracestate,
    parse_traceparent,
    span_id_of,
    time_bits,
    trace_id_of,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"


def test_a_traceparent_says_trace_span_and_whether_it_is_sampled() -> None:
    assert parse_traceparent(GOOD) == TraceContext(TRACE, SPAN, is_sampled=True)
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-00") == TraceContext(TRACE, SPAN, is_sampled=False)
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-fe") == TraceContext(TRACE, SPAN, is_sampled=False)
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-ff") == TraceContext(TRACE, SPAN, is_sampled=True)


@pytest.mark.parametrize("text", [f"01-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-what-comes-next"])
def test_a_later_version_is_taken_by_what_it_has_in_common(text: str) -> None:
    assert parse_traceparent(text) == TraceContext(TRACE, SPAN, is_sampled=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        GOOD.upper(),
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01-",
        f"01-{TRACE}-{SPAN}-01more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}",
        f" {GOOD}",
        f"{GOOD}\n",
        f"0x-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN[:-1]}g-01",
        f"00-{'٣' * 32}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01-{'x' * 10_000}",
    ],
)
def test_what_is_no_traceparent_counts_as_none(text: str) -> None:
    assert parse_traceparent(text) is None
    assert context_in({"traceparent": text}) is None
    assert trace_id_of("orders", 0, 7, 9, encode_headers({"traceparent": text})) == derived_trace_id("orders", 0, 7, 9)


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    context = parse_traceparent(text)

    assert context is None or parse_traceparent(context.traceparent) == context


def test_what_is_formatted_can_be_parsed() -> None:
    assert format_traceparent(TRACE, SPAN) == GOOD
    assert format_traceparent(TRACE, SPAN, is_sampled=False) == f"00-{TRACE}-{SPAN}-00"


def test_a_trace_without_a_span_gets_one_for_those_who_follow() -> None:
    parsed = parse_traceparent(TraceContext(TRACE, "", is_sampled=True).traceparent)

    assert parsed is not None
    assert parsed.trace_id == TRACE


def test_a_trace_id_is_32_hex_digits_and_not_zero() -> None:
    assert is_trace_id(TRACE)
    assert not any(map(is_trace_id, ("", TRACE[1:], TRACE + "0", TRACE.upper(), "0" * 32, "g" * 32, TRACE + "\n")))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("vendor=1,other=2", "vendor=1,other=2"),
        ("  vendor=1 ", "vendor=1"),
        ("x" * 512, "x" * 512),
        ("x" * 513, None),
        ("", None),
        ("a\nb", None),
        ("ü=1", None),
    ],
)
def test_a_tracestate_is_kept_up_to_512_bytes(text: str, kept: str | None) -> None:
    assert kept_tracestate(text) == kept


def test_a_message_belongs_to_the_trace_it_names_then_to_that_of_its_original_then_to_its_own() -> None:
    other = "1" * 32

    assert trace_id_of("t", 0, 1, 2, encode_headers({"gq-trace": other, "traceparent": GOOD})) == TRACE
    assert trace_id_of("t", 0, 1, 2, encode_headers({"gq-trace": other, "traceparent": "nonsense"})) == other
    assert trace_id_of("t", 0, 1, 2, encode_headers({"gq-trace": "nonsense"})) == derived_trace_id("t", 0, 1, 2)
    assert trace_id_of("t", 0, 1, 2) == derived_trace_id("t", 0, 1, 2)
    assert context_of("t", 0, 1, 2).span_id == ""


def test_headers_that_cannot_be_read_name_no_trace() -> None:
    raw = encode_headers({"traceparent": GOOD})

    assert explicit_context(raw[:-1]) is None
    assert explicit_context(b"\x00\x01traceparent") is None
    assert explicit_context(encode_headers({"traceparent": b"\xff" + GOOD[1:].encode()})) is None


def test_a_name_in_other_letters_is_another_name() -> None:
    assert explicit_context(encode_headers({"Traceparent": GOOD})) is None


@given(
    topic=st.text(min_size=1, max_size=20),
    partition=st.integers(0, 2**16 - 1),
    offset=st.integers(0, 2**48 - 1),
    timestamp_ns=st.integers(-(2**63), 2**63 - 1),
)
def test_a_derived_id_leads_back_to_its_message(topic: str, partition: int, offset: int, timestamp_ns: int) -> None:
    trace_id = derived_trace_id(topic, partition, offset, timestamp_ns)

    assert is_trace_id(trace_id)
    assert invert(trace_id) == DerivedFrom(crc32c(topic.encode()), partition, offset, time_bits(timestamp_ns))


def test_derived_ids_of_neighbours_look_like_chance() -> None:
    ids = [int(derived_trace_id("orders", 0, offset, 1_700_000_000_000_000_000), 16) for offset in range(20_000)]

    assert len(set(ids)) == len(ids)
    for bit in range(128):
        share = sum(one >> bit & 1 for one in ids) / len(ids)
        assert 0.45 < share < 0.55, bit


def test_another_time_is_another_trace() -> None:
    assert derived_trace_id("orders", 0, 1, 10) != derived_trace_id("orders", 0, 1, 11)


def test_a_span_id_is_the_same_for_the_same_facts_only() -> None:
    facts: list[tuple[object, ...]] = [("a", 1), ("a", 2), ("b", 1), ("a\x00", 1), ("a", "1", "")]
    ids = [span_id_of(TRACE, *one) for one in facts]

    assert len(set(ids)) == len(ids)
    assert span_id_of(TRACE, "a", 1) == ids[0]
    assert all(len(one) == 16 and int(one, 16) for one in ids)
    assert span_id_of("1" * 32, "a", 1) != ids[0]
