"""The trace of a message, from its record alone.

    traceparent   00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01    W3C: the trace of the publisher
    gq-trace      0af7651916cd43dd8448eb211c80319c                           of a copy by the broker: the original's
    neither                                                                  derived from the record's offset and time

A derived id costs nothing until it is needed: it is not stored, and broker and client compute the same one. It has 128
bits,

    crc32c of the topic (32) | partition (16) | offset (48) | a mix of the append time (32)

which are mixed by invertible steps. So ids look random, as samplers expect, and a lookup by id computes the place of
the message without an index.

A `traceparent` that violates the W3C rules is ignored, as these rules demand: ids of zeros, capitals, version `ff`,
text after a version `00`. Of later versions the common part is used.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from mmh3 import hash64

from goqueue.errors import CorruptRecord
from goqueue.record.headers import split_headers
from goqueue.record.kernel import crc32c

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
COPY_TRACE: Final = "gq-trace"
TRACESTATE_BYTES_MAX: Final = 512
TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8
SAMPLED: Final = 0x01

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL)
_TRACE_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_NO_TRACE = "0" * 32
_NO_SPAN = "0" * 16
_TEXT_MAX = 1_024

_OFFSET_BITS, _PARTITION_BITS, _TIME_BITS = 48, 16, 32
_MASK = (1 << 128) - 1
_PATTERN = 0x5851F42D4C957F2D14057B7EF767814F
_FACTOR = 0x9E3779B97F4A7C15F39CC0605CEDC835
_INVERSE = pow(_FACTOR, -1, 1 << 128)
_SHIFT = 64
_TIME_FACTOR = 0x9E3779B97F4A7C15
assert _FACTOR & 1


class TraceContext(NamedTuple):
    """A trace, and the span that a message belongs to; `span_id` is empty if it is not known."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        """The `traceparent` header."""
        span_id = self.span_id or span_id_of(self.trace_id, "")
        return format_traceparent(self.trace_id, span_id, is_sampled=self.is_sampled)


class DerivedFrom(NamedTuple):
    """The parts of a derived id."""

    topic_crc: int
    partition: int
    offset: int
    time_bits: int


def parse_traceparent(text: str) -> TraceContext | None:
    """The context in a `traceparent`; None if the text is invalid."""
    match = _TRACEPARENT.fullmatch(text) if len(text) <= _TEXT_MAX else None
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest is not None) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & SAMPLED))


def format_traceparent(trace_id: str, span_id: str, *, is_sampled: bool = True) -> str:
    """A `traceparent` of version 00."""
    return f"00-{trace_id}-{span_id}-{int(is_sampled):02x}"


def kept_tracestate(text: str) -> str | None:
    """The `tracestate` to store with a message; None if it is empty, too long or not one line of text."""
    text = text.strip()
    if not text or not text.isascii() or not text.isprintable() or len(text) > TRACESTATE_BYTES_MAX:
        return None
    return text


def is_trace_id(text: str) -> bool:
    """Whether the text is a valid trace id."""
    return _TRACE_ID.fullmatch(text) is not None and text != _NO_TRACE


def context_in(headers: Mapping[str, str]) -> TraceContext | None:
    """The trace that the headers of a message name; None if they name none."""
    context = parse_traceparent(headers.get(TRACEPARENT, ""))
    if context is None:
        copied = headers.get(COPY_TRACE, "")
        if is_trace_id(copied):
            return TraceContext(copied, "", is_sampled=True)
    return context


def explicit_context(encoded: bytes | None) -> TraceContext | None:
    """The trace that encoded headers name."""
    if not encoded or (b"traceparent" not in encoded and b"gq-trace" not in encoded):
        return None
    with suppress(CorruptRecord):
        named = dict(split_headers(encoded))
        texts = {
            name: (named.get(name.encode()) or b"").decode("utf-8", "replace") for name in (TRACEPARENT, COPY_TRACE)
        }
        return context_in(texts)
    return None


def context_of(
    topic: str, partition: int, offset: int, timestamp_ns: int, encoded: bytes | None = None
) -> TraceContext:
    """The trace of a message: the one that its headers name, or the derived one."""
    found = explicit_context(encoded)
    return found or TraceContext(derived_trace_id(topic, partition, offset, timestamp_ns), "", is_sampled=True)


def trace_id_of(topic: str, partition: int, offset: int, timestamp_ns: int, encoded: bytes | None = None) -> str:
    return context_of(topic, partition, offset, timestamp_ns, encoded).trace_id


def derived_trace_id(topic: str, partition: int, offset: int, timestamp_ns: int) -> str:
    """The trace id of a message whose headers name none."""
    packed = crc32c(topic.encode())
    packed = packed << _PARTITION_BITS | partition & ((1 << _PARTITION_BITS) - 1)
    packed = packed << _OFFSET_BITS | offset & ((1 << _OFFSET_BITS) - 1)
    packed = packed << _TIME_BITS | time_bits(timestamp_ns)
    return f"{_mixed(packed):032x}"


def invert(trace_id: str) -> DerivedFrom:
    """The parts of a derived id. For any other id, no message has these parts and this time."""
    packed = _unmixed(int(trace_id, 16))
    packed, time = packed >> _TIME_BITS, packed & ((1 << _TIME_BITS) - 1)
    packed, offset = packed >> _OFFSET_BITS, packed & ((1 << _OFFSET_BITS) - 1)
    return DerivedFrom(packed >> _PARTITION_BITS, packed & ((1 << _PARTITION_BITS) - 1), offset, time)


def time_bits(timestamp_ns: int) -> int:
    """The bits of the append time in a derived id."""
    return (timestamp_ns * _TIME_FACTOR & (1 << 64) - 1) >> 32


def span_id_of(trace_id: str, *facts: object) -> str:
    """The id of a span of that trace, always the same for the same facts."""
    text = "\x00".join((trace_id, *map(str, facts)))
    number: int = hash64(text.encode("utf-8", "surrogateescape"), signed=False)[0]
    return f"{number or 1:016x}"


def _mixed(packed: int) -> int:
    mixed = (packed ^ _PATTERN) * _FACTOR & _MASK
    mixed ^= mixed >> _SHIFT
    return mixed * _FACTOR & _MASK


def _unmixed(mixed: int) -> int:
    mixed = mixed * _INVERSE & _MASK
    mixed ^= mixed >> _SHIFT  # a shift by half of the bits is its own inverse
    return mixed * _INVERSE & _MASK ^ _PATTERN
