"""Fetches on the wire: they come back as they were, and what is no fetch is refused."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.broker.partition.fetching import (
    NO_RECORDS,
    Diverging,
    Fetch,
    FetchAnswer,
    LogAnswer,
    LogPosition,
    OutOfRange,
    Records,
)
from goqueue.cluster.fetch_messages import (
    WAIT_MS_MAX,
    AnsweredReplica,
    FetchReply,
    FetchRequest,
    answer_of,
    answered_replica,
    asked_replica,
    decode_reply,
    decode_request,
    encode,
    fetch_of,
)
from goqueue.errors import InvalidRequest

NUMBER_MAX = (1 << 63) - 1
START = LogPosition(0, NO_RECORDS, 0, 0)

numbers = st.integers(0, NUMBER_MAX)
ids = st.text(max_size=256)
keys = st.tuples(ids, numbers)
positions = st.builds(LogPosition, numbers, st.integers(NO_RECORDS, NUMBER_MAX), numbers, numbers)
fetches = st.builds(Fetch, numbers, positions, positions)
found = st.one_of(
    st.none(),
    st.builds(Records, numbers, numbers, st.binary(), numbers, st.booleans()),
    st.builds(Diverging, numbers, numbers),
    st.builds(OutOfRange),
)
log_answers = st.builds(LogAnswer, positions, found, numbers, numbers)
answers = st.builds(FetchAnswer, numbers, st.none(), log_answers, log_answers, numbers)


def request(**changes: Any) -> FetchRequest:
    fields: dict[str, Any] = {"node": 2, "broker_epoch": 5, "directory": "d", "session": "s", "is_first": True}
    return FetchRequest(**fields | changes)


def tampered(message: FetchRequest | FetchReply, **changes: object) -> bytes:
    """The message as a sender that checks nothing would send it."""
    return msgspec.msgpack.encode(msgspec.to_builtins(message, builtin_types=(bytes,)) | changes)


# What comes back


@given(st.lists(st.tuples(keys, fetches), max_size=4), st.lists(keys, max_size=4), ids, numbers, st.booleans())
def test_a_request_comes_back_as_it_was(
    asked: list[tuple[tuple[str, int], Fetch]],
    dropped: list[tuple[str, int]],
    session: str,
    broker_epoch: int,
    is_first: bool,
) -> None:
    sent = FetchRequest(
        node=2,
        broker_epoch=broker_epoch,
        directory="d",
        session=session,
        is_first=is_first,
        asked=tuple(asked_replica(key, fetch) for key, fetch in asked),
        dropped=tuple(dropped),
        wait_ms=WAIT_MS_MAX,
    )

    received = decode_request(encode(sent))

    assert received == sent
    assert [((one.topic_id, one.partition), fetch_of(one)) for one in received.asked] == asked


@given(st.lists(st.tuples(keys, answers), max_size=4))
def test_a_reply_comes_back_as_it_was(told: list[tuple[tuple[str, int], FetchAnswer]]) -> None:
    sent = FetchReply(True, tuple(answered_replica(key, answer) for key, answer in told))

    received = decode_reply(encode(sent))

    assert received == sent
    assert [((one.topic_id, one.partition), answer_of(one)) for one in received.answers] == told


@pytest.mark.parametrize(
    "found",
    [None, Records(3, 7, b"stored", 9, True), Records(0, 0, b"", 2, False), Diverging(2, 5), OutOfRange()],
)
def test_every_kind_of_answer_comes_back(found: Records | Diverging | OutOfRange | None) -> None:
    answer = FetchAnswer(3, None, LogAnswer(START, found, 4, 1), LogAnswer(START, None, 0, 0), 2)

    reply = decode_reply(encode(FetchReply(True, (answered_replica(("t1", 0), answer),))))

    assert answer_of(reply.answers[0]) == answer


def test_records_that_lie_in_the_memory_of_the_leader_are_copied_out_of_it() -> None:
    stored = bytearray(b"..stored..")
    found = Records(1, 0, memoryview(stored)[2:8], 1, False)

    answered = answered_replica(
        ("t1", 0), FetchAnswer(1, None, LogAnswer(START, found, 0, 0), LogAnswer(START, None, 0, 0))
    )
    stored[:] = bytes(len(stored))

    log = answer_of(answered).log
    assert log is not None
    assert log.found == Records(1, 0, b"stored", 1, False)


def test_a_session_that_is_not_known_is_a_reply_without_answers() -> None:
    assert decode_reply(encode(FetchReply(is_known=False))) == FetchReply(False, ())


def test_what_a_later_version_adds_is_skipped() -> None:
    assert decode_request(tampered(request(), added=1)) == request()
    assert decode_reply(tampered(FetchReply(True), added=1)) == FetchReply(True)


# What is refused


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_an_invalid_request(raw: bytes) -> None:
    for decode in (decode_request, decode_reply):
        try:
            message = decode(raw)
        except InvalidRequest:
            continue
        assert isinstance(message, FetchRequest | FetchReply)


@given(st.data())
def test_a_damaged_message_is_another_message_or_an_invalid_request(data: st.DataObject) -> None:
    fetch, answer = data.draw(fetches), data.draw(answers)
    sent_request = encode(request(asked=(asked_replica(("t1", 0), fetch),)))
    sent_reply = encode(FetchReply(True, (answered_replica(("t1", 0), answer),)))

    try:
        decode_request(damaged(sent_request, data))
    except InvalidRequest:
        pass
    try:
        for answered in decode_reply(damaged(sent_reply, data)).answers:
            answer_of(answered)
    except InvalidRequest:
        pass


def damaged(raw: bytes, data: st.DataObject) -> bytes:
    """With one other byte, or cut off."""
    position = data.draw(st.integers(0, len(raw) - 1))
    return (
        raw[:position]
        + data.draw(st.binary(min_size=1, max_size=1))
        + data.draw(st.sampled_from([raw[position + 1 :], b""]))
    )


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\xc0", b"\x80", b"\x90", b"\x01", b"\x81\xa7answers\x90"])
def test_what_is_no_message_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a fetch"):
        decode_request(raw)
    with pytest.raises(InvalidRequest, match="not the answer to a fetch"):
        decode_reply(raw)


def test_a_message_that_is_nested_too_deep_is_refused() -> None:
    deep = b"\x81\xa1x" + b"\x91" * 100_000

    with pytest.raises(InvalidRequest):
        decode_request(deep)
    with pytest.raises(InvalidRequest):
        decode_reply(deep)


@pytest.mark.parametrize(
    "changes",
    [
        {"node": -1},
        {"broker_epoch": NUMBER_MAX + 1},
        {"broker_epoch": -1},
        {"session": "s" * 257},
        {"directory": "d" * 257},
        {"wait_ms": WAIT_MS_MAX + 1},
        {"wait_ms": -1},
        {"dropped": [("t" * 257, 0)]},
        {"dropped": [("t1", -1)]},
        {"asked": [("t1", NUMBER_MAX + 1, 1, START, START)]},
        {"asked": [("t1", 0, -1, START, START)]},
        {"asked": [("t1", 0, 1, (NUMBER_MAX + 1, 0, 0, 0), START)]},
        {"asked": [("t1", 0, 1, START, (0, NO_RECORDS - 1, 0, 0))]},
        {"asked": [("t1", 0, 1, START, (0, NUMBER_MAX + 1, 0, 0))]},
        {"asked": [("t1", 0, 1, START, (0, 0, -1, 0))]},
        {"asked": [("t1", 0, 1, START)]},
    ],
)
def test_a_request_beyond_its_bounds_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        decode_request(tampered(request(), **changes))


NOTHING = (START, 0, 0)


@pytest.mark.parametrize(
    "answered",
    [
        ("t" * 257, 0, 1, NOTHING, NOTHING, 0),
        ("t1", -1, 1, NOTHING, NOTHING, 0),
        ("t1", 0, NUMBER_MAX + 1, NOTHING, NOTHING, 0),
        ("t1", 0, 1, NOTHING, NOTHING, NUMBER_MAX + 1),
        ("t1", 0, 1, (START, NUMBER_MAX + 1, 0), NOTHING, 0),
        ("t1", 0, 1, NOTHING, (START, 0, -1), 0),
        ("t1", 0, 1, (START, 0, 0, 2, NUMBER_MAX + 1), NOTHING, 0),
        ("t1", 0, 1, (START, 0, 0, 2, 0, -1), NOTHING, 0),
        ("t1", 0, 1, (START, 0, 0, 1, 0, 0, "text"), NOTHING, 0),
        ("t1", 0, 1, (START, 0, 0, 1, 0, 0, b"", NUMBER_MAX + 1), NOTHING, 0),
        ("t1", 0, 1, NOTHING),
    ],
)
def test_a_reply_beyond_its_bounds_is_refused(answered: tuple[object, ...]) -> None:
    with pytest.raises(InvalidRequest):
        decode_reply(tampered(FetchReply(True), answers=[answered]))


@pytest.mark.parametrize("kind", [-1, 4, NUMBER_MAX])
def test_an_answer_of_an_unknown_kind_is_refused(kind: int) -> None:
    answered: list[AnsweredReplica] = []
    for log, ledger in (((*NOTHING, kind), NOTHING), (NOTHING, (*NOTHING, kind))):
        answered += decode_reply(tampered(FetchReply(True), answers=[("t1", 0, 1, log, ledger, 0)])).answers

    for one in answered:
        with pytest.raises(InvalidRequest, match=f"kind {kind}"):
            answer_of(one)
