"""Frames survive any cutting of the stream; whatever is no frame is refused, and what is only claimed costs nothing."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.wire import frames
from goqueue.wire.frames import (
    FRAME_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    META_BYTES_MAX,
    BadFrame,
    Frame,
    FrameFlags,
    FrameReader,
)

Told = tuple[int, int, int, bytes, bytes]

told_frames = st.tuples(
    st.integers(0, 255),
    st.integers(0, 255),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=50),
    st.binary(max_size=600),
)


def packed(told: Told) -> bytes:
    kind, flags, correlation, meta, payload = told
    if flags & FrameFlags.SELF_CHECKED:
        return frames.pack(kind, correlation, meta, len(payload), flags=flags) + payload
    return frames.pack_checked(kind, correlation, meta, payload, flags=flags) + payload


def feed(reader: FrameReader, data: bytes) -> list[Frame]:
    """Receive all of it, as much at a time as the reader gives room for."""
    found: list[Frame] = []
    while data:
        buffer = reader.get_buffer()
        assert len(buffer) > 0
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        del buffer
        data = data[size:]
        found += reader.received(size)
    return found


def read_in(pieces: Iterable[bytes], reader: FrameReader | None = None) -> list[Told]:
    reader = reader or FrameReader()
    found = [frame for piece in pieces for frame in feed(reader, piece)]
    return [(kind, flags, number, bytes(meta), bytes(payload)) for kind, flags, number, meta, payload in found]


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = [0, *sorted(place % (len(data) + 1) for place in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


@given(st.lists(told_frames, max_size=12), st.lists(st.integers(0, 2**31), max_size=20))
def test_the_same_frames_come_however_the_stream_is_cut(told: list[Told], cuts: list[int]) -> None:
    stream = b"".join(map(packed, told))

    assert read_in(cut(stream, cuts)) == told
    assert read_in(cut(stream, cuts), FrameReader(trusts=True)) == told


def test_the_same_frames_come_byte_by_byte() -> None:
    told: list[Told] = [(21, 0, 7, b"meta", b"payload" * 100), (2, 1, 8, b"", b""), (30, 5, 9, b"m", b"")]
    stream = b"".join(map(packed, told))

    assert read_in(stream[at : at + 1] for at in range(len(stream))) == told


@given(told_frames, st.integers(0, 2**31), st.sampled_from([0, FrameFlags.SELF_CHECKED]))
def test_every_flipped_bit_is_found(told: Told, place: int, self_checked: int) -> None:
    kind, flags, correlation, meta, payload = told
    told = (kind, flags & ~FrameFlags.SELF_CHECKED | self_checked, correlation, meta, payload)
    stream = bytearray(packed(told))
    covered = len(stream) - (len(payload) if self_checked else 0)
    bit = place % (8 * covered)
    stream[bit // 8] ^= 1 << bit % 8
    following = packed((2, 0, 1, b"", b"x" * 1_000)) * 20 if bit < 32 else b""

    with pytest.raises(BadFrame):  # a longer length is found out once there is that much
        read_in([bytes(stream) + following], FrameReader(frame_bytes_max=16_384))


@pytest.mark.parametrize("bit", range(32))
def test_a_flipped_length_of_records_is_found_before_they_are_given_out(bit: int) -> None:
    told = (30, int(FrameFlags.SELF_CHECKED), 1, b"meta", b"r" * 7_000)
    stream = bytearray(packed(told))
    stream[bit // 8] ^= 0x80 >> bit % 8
    reader = FrameReader(frame_bytes_max=16_384)

    with pytest.raises(BadFrame):
        feed(reader, bytes(stream) + bytes(16_384))


@pytest.mark.parametrize(
    ("length", "meta_size", "reason"),
    [
        (0xFFFF_FFFF, 0, "too_long"),
        (FRAME_BYTES_MAX - 3, 0, "too_long"),
        (11, 0, "truncated"),
        (0, 0, "truncated"),
        (12, 1, "truncated"),
        (12 + 0xFFFE, 0xFFFF, "truncated"),
    ],
)
def test_a_length_that_cannot_be_is_refused_at_once(length: int, meta_size: int, reason: str) -> None:
    reader = FrameReader()

    with pytest.raises(BadFrame) as refused:
        feed(reader, HEADER.pack(length, 21, 0, meta_size, 1, 0))

    assert refused.value.reason == reason
    assert reader.buffered_bytes <= 8_192


def test_the_longest_frame_passes_and_one_byte_more_does_not() -> None:
    limit = 100_000
    fits = (21, 0, 1, b"meta", b"p" * (limit - 20))
    over = (21, 0, 1, b"meta", b"p" * (limit - 19))

    assert read_in([packed(fits)], FrameReader(frame_bytes_max=limit)) == [fits]
    with pytest.raises(BadFrame):
        read_in([packed(over)], FrameReader(frame_bytes_max=limit))


def test_frames_in_front_of_a_bad_one_are_given_out() -> None:
    reader = FrameReader()
    stream = packed((2, 0, 1, b"", b"")) + packed((2, 0, 2, b"", b"")) + b"\xff" * 16
    buffer = reader.get_buffer()
    buffer[: len(stream)] = stream
    found: list[Frame] = []

    with pytest.raises(BadFrame):
        found.extend(reader.received(len(stream)))

    assert [frame.correlation for frame in found] == [1, 2]


@given(st.integers(16, FRAME_BYTES_MAX), st.integers(16, 2_000_000))
def test_what_is_claimed_costs_only_a_multiple_of_what_came(claimed: int, received: int) -> None:
    reader = FrameReader()
    received = min(received, claimed - 1)
    head = HEADER.pack(claimed - 4, 21, 0, 0, 1, 0)
    stream = memoryview(head + bytes(received))[:received]

    while stream:
        buffer = reader.get_buffer()
        size = min(len(buffer), len(stream), 65_536)
        buffer[:size] = stream[:size]
        stream = stream[size:]
        assert not list(reader.received(size))
        assert reader.buffered_bytes <= max(4 * reader.pending_bytes, 512 * 1024)

    assert reader.pending_bytes == received


def receive(reader: FrameReader, data: bytes) -> tuple[list[Frame], list[int]]:
    """The frames in what comes in packets, and how large the buffer was for each of these."""
    rest = memoryview(data)
    sizes: list[int] = []
    found: list[Frame] = []
    while rest:
        buffer = reader.get_buffer()
        sizes.append(reader.buffered_bytes)
        size = min(len(buffer), len(rest), 65_536)
        buffer[:size] = rest[:size]
        rest = rest[size:]
        found += reader.received(size)
    return found, sizes


def test_a_large_frame_is_copied_only_a_few_times() -> None:
    payload = bytes(range(256)) * 100_000

    found, sizes = receive(FrameReader(), packed((21, 0, 1, b"meta", payload)))

    assert found[0].payload == payload
    assert len({*sizes}) < 20


def test_payloads_stay_as_they_are_while_later_frames_come() -> None:
    reader = FrameReader()
    kept: list[tuple[Frame, bytes]] = []

    for number in range(300):
        payload = bytes([number % 256]) * (number * 37 % 5_000)
        (frame,) = feed(reader, packed((21, 0, number, b"meta", payload)))
        kept.append((frame, payload))

    assert all((bytes(frame.payload), bytes(frame.meta)) == (payload, b"meta") for frame, payload in kept)


LARGE = 3_000_000


def large(number: int, size: int = LARGE) -> bytes:
    return packed((21, 0, number, b"meta", bytes([number]) * size))


def test_a_large_frame_of_a_trusted_peer_is_received_in_its_place() -> None:
    found, sizes = receive(FrameReader(trusts=True), large(1))

    assert found[0].payload == bytes([1]) * LARGE
    (size,) = {*sizes[1:]}
    assert LARGE + HEADER_BYTES + len(b"meta") <= size < LARGE + 1_000_000


def test_memory_that_nobody_looks_at_any_more_is_used_again() -> None:
    reader = FrameReader(trusts=True)
    places = set()

    for number in range(20):
        (frame,) = feed(reader, large(number, LARGE - number))
        assert frame.payload == bytes([number]) * (LARGE - number)
        places.add(id(frame.payload.obj))
        del frame

    assert len(places) <= 2


def test_what_somebody_looks_at_is_not_written_over() -> None:
    reader = FrameReader(trusts=True)
    kept: dict[int, memoryview] = {}

    for number in range(30):
        (frame,) = feed(reader, large(number, 600_000 + number % 7))
        kept[number] = frame.payload[1:]
        del frame
        kept.pop(number - 1 - number % 4, None)

    assert len(kept) > 10
    assert all(payload == bytes([number]) * len(payload) for number, payload in kept.items())


def test_when_large_frames_have_ended_nothing_is_kept_for_more() -> None:
    reader = FrameReader(trusts=True)
    feed(reader, large(1))
    feed(reader, large(2))
    feed(reader, large(3))
    assert LARGE < reader.buffered_bytes < 2 * LARGE + 100

    feed(reader, packed((21, 0, 1, b"meta", b"")))

    assert reader.buffered_bytes == 0


def test_a_reader_with_nothing_to_finish_holds_no_buffer() -> None:
    reader = FrameReader()
    assert reader.buffered_bytes == 0

    feed(reader, packed((21, 0, 1, b"meta", bytes(500_000))))
    assert (reader.buffered_bytes, reader.pending_bytes) == (0, 0)

    feed(reader, packed((21, 0, 1, b"meta", b""))[:-1])
    assert reader.pending_bytes == 19


@given(st.lists(st.binary(max_size=400), max_size=10))
def test_random_bytes_give_frames_or_are_refused_and_nothing_else(pieces: list[bytes]) -> None:
    try:
        read_in(pieces)
    except BadFrame as refused:
        assert refused.reason in ("too_long", "truncated", "checksum")


def test_mutated_streams_give_frames_or_are_refused_and_nothing_else() -> None:
    random = Random(7)
    stream = b"".join(packed((21, 0, number, b"meta", bytes(number * 50))) for number in range(20))

    for _ in range(500):
        mutated = bytearray(stream)
        for _ in range(random.randrange(1, 4)):
            at = random.randrange(len(mutated))
            mutated[at : at + random.choice((0, 1, 5))] = random.randbytes(random.choice((0, 1, 5)))
        try:
            read_in(cut(bytes(mutated), [random.randrange(len(mutated)) for _ in range(5)]))
        except BadFrame:
            pass


def test_a_meta_that_does_not_fit_is_refused_where_it_is_packed() -> None:
    assert frames.pack(1, 1, bytes(META_BYTES_MAX))
    with pytest.raises(BadFrame):
        frames.pack(1, 1, bytes(META_BYTES_MAX + 1))
