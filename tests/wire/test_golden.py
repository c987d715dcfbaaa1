"""The bytes of every frame are what they were."""

import msgspec
import pytest

from goqueue.wire.frames import FrameReader
from goqueue.wire.verbs import Verb
from tests.wire.golden import FRAMES, golden, written

NOT_ANSWERED = {Verb.CREDIT, Verb.UNSUBSCRIBE}


@pytest.mark.parametrize(("correlation", "name"), list(enumerate(FRAMES, 1)), ids=str)
def test_a_frame_is_encoded_to_the_bytes_that_clients_know(correlation: int, name: str) -> None:
    frame = FRAMES[name].encode(correlation)

    assert golden().get(name, b"").hex() == frame.hex(), f"golden/frames.txt would have to say\n{written(name, frame)}"


@pytest.mark.parametrize(("correlation", "name"), list(enumerate(FRAMES, 1)), ids=str)
def test_the_bytes_that_clients_know_are_decoded_to_the_same_frame(correlation: int, name: str) -> None:
    specimen, raw = FRAMES[name], golden()[name]
    reader = FrameReader()
    buffer = reader.get_buffer()
    buffer[: len(raw)] = raw

    (frame,) = reader.received(len(raw))

    assert (frame.kind, frame.flags, frame.correlation) == (specimen.verb, specimen.flags, correlation)
    assert msgspec.msgpack.decode(frame.meta, type=type(specimen.meta)) == specimen.meta
    if specimen.payload_type is bytes:
        assert bytes(frame.payload) == specimen.payload
    else:
        assert msgspec.msgpack.decode(frame.payload, type=specimen.payload_type) == specimen.payload


def test_every_verb_has_a_request_and_an_answer_there() -> None:
    requests = {f"{verb.name} request" for verb in Verb}
    answers = {f"{verb.name} answer" for verb in Verb if verb not in {*NOT_ANSWERED, Verb.SUBSCRIBE}}

    assert set(FRAMES) == requests | answers | {"SUBSCRIBE push", "ERROR answer"}
    assert golden().keys() == FRAMES.keys()


def test_no_field_of_a_request_is_left_at_its_default() -> None:
    """Else a default that changes would change no bytes."""
    shared = {"acks", "version", "features"}  # publish names acks; a client says the version and features that it has
    at_default = [
        f"{name}: {field.name}"
        for name, specimen in FRAMES.items()
        if name.endswith("request")
        for field in msgspec.structs.fields(specimen.meta)
        if not field.required and field.name not in shared
        if getattr(specimen.meta, field.name) == field.default
    ]

    assert at_default == []
