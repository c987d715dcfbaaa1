"""One specimen of every frame, request and answer, and its bytes in golden/frames.txt.

The bytes are what clients in other languages were written against. A change of them is a change of the protocol:
if one is meant, edit golden/frames.txt by hand, and docs/reference/protocol.md with it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from goqueue.record import kernel
from goqueue.wire import frames, verbs
from goqueue.wire.frames import FrameFlags
from goqueue.wire.reports import (
    DeliveredBatch,
    Gap,
    HeartbeatAnswer,
    JoinAnswer,
    PartitionGap,
    PartitionName,
    PollAnswer,
    Refusal,
    SettledBatch,
    Settlement,
)
from goqueue.wire.verbs import Verb

FILE = Path(__file__).parent / "golden" / "frames.txt"
_RESPONSE = FrameFlags.RESPONSE
_RECORDS = FrameFlags.RESPONSE | FrameFlags.SELF_CHECKED
_ERROR = FrameFlags.RESPONSE | FrameFlags.ERROR
_WIDTH = 96


class Specimen(NamedTuple):
    """A frame: its verb, its flags, its meta, and its payload: raw bytes, or what is encoded as msgpack."""

    verb: Verb
    meta: msgspec.Struct
    payload: Any = b""
    payload_type: Any = bytes
    flags: int = 0

    @property
    def raw_payload(self) -> bytes:
        return self.payload if self.payload_type is bytes else verbs.encode(self.payload)

    def encode(self, correlation: int) -> bytes:
        """The frame."""
        payload = self.raw_payload
        is_unchecked = self.flags & FrameFlags.SELF_CHECKED or not payload
        meta = verbs.encode(self.meta)
        if is_unchecked:
            return frames.pack(self.verb, correlation, meta, len(payload), flags=self.flags) + payload
        return frames.pack_checked(self.verb, correlation, meta, payload, flags=self.flags) + payload


def _stored(*values: bytes) -> bytes:
    records = kernel.encode(values, keys=[b"k"] * len(values))
    kernel.stamp(records, first_offset=41, timestamp=1_700_000_000_123_456_789)
    return bytes(records)


_ERROR_META = verbs.ErrorMeta("TOPIC_NOT_FOUND", "topic not found: t", False, {"topic": "t"})
_TOPIC = verbs.TopicState(
    "t",
    "0123456789abcdef0123456789abcdef",
    1,
    1_700_000_000_000_000_000,
    {"retention": "7d"},
    ["acks"],
    [verbs.PartitionState(0, 5, 43, 43, 42, 4_096, 1, 38)],
)
_READ = verbs.ReadAnswer(2, 43, 43, 43, 5, 42, True, 0, (Gap(39, 41, "checksum mismatch"),))

FRAMES: dict[str, Specimen] = {
    "HELLO request": Specimen(Verb.HELLO, verbs.HelloRequest(client_id="docs", api_key="secret")),
    "HELLO answer": Specimen(
        Verb.HELLO, verbs.HelloAnswer(1, ("publish",), 1, "goqueue 0.1.0", 34_603_008), flags=_RESPONSE
    ),
    "PING request": Specimen(Verb.PING, verbs.Empty()),
    "PING answer": Specimen(Verb.PING, verbs.Empty(), flags=_RESPONSE),
    "METADATA request": Specimen(Verb.METADATA, verbs.MetadataRequest(["t", "gone"])),
    "METADATA answer": Specimen(
        Verb.METADATA,
        verbs.MetadataAnswer(
            {1: "", 2: "b:7000"},
            [
                verbs.TopicMetadata(
                    "t", "0123456789abcdef0123456789abcdef", [1, 2], "zstd", 1_048_576, "leader", "murmur2"
                ),
                verbs.TopicMetadata("gone", "", [], error=_ERROR_META),
            ],
        ),
        flags=_RESPONSE,
    ),
    "CREATE_TOPIC request": Specimen(
        Verb.CREATE_TOPIC, verbs.CreateTopicRequest("t", 6, {"retention": "7d", "max_deliveries": 5}, 1)
    ),
    "CREATE_TOPIC answer": Specimen(Verb.CREATE_TOPIC, _TOPIC, flags=_RESPONSE),
    "DELETE_TOPIC request": Specimen(Verb.DELETE_TOPIC, verbs.TopicRequest("t")),
    "DELETE_TOPIC answer": Specimen(Verb.DELETE_TOPIC, verbs.Empty(), flags=_RESPONSE),
    "LIST_TOPICS request": Specimen(Verb.LIST_TOPICS, verbs.ListTopicsRequest(True)),
    "LIST_TOPICS answer": Specimen(Verb.LIST_TOPICS, verbs.Empty(), ["__groups", "t"], list[str], _RESPONSE),
    "DESCRIBE_TOPIC request": Specimen(Verb.DESCRIBE_TOPIC, verbs.TopicRequest("t")),
    "DESCRIBE_TOPIC answer": Specimen(Verb.DESCRIBE_TOPIC, _TOPIC, flags=_RESPONSE),
    "ALTER_TOPIC request": Specimen(Verb.ALTER_TOPIC, verbs.AlterTopicRequest("t", {"retention": "1d", "acks": None})),
    "ALTER_TOPIC answer": Specimen(Verb.ALTER_TOPIC, _TOPIC, flags=_RESPONSE),
    "OFFSETS request": Specimen(Verb.OFFSETS, verbs.OffsetsRequest("t", 1_700_000_000_000_000_000, "earliest")),
    "OFFSETS answer": Specimen(Verb.OFFSETS, verbs.OffsetsAnswer([41, 2**40]), flags=_RESPONSE),
    "INIT_PRODUCER request": Specimen(Verb.INIT_PRODUCER, verbs.Empty()),
    "INIT_PRODUCER answer": Specimen(
        Verb.INIT_PRODUCER, verbs.ProducerIdentity(81_985_529_216_486_895, 0), flags=_RESPONSE
    ),
    "PUBLISH request": Specimen(Verb.PUBLISH, verbs.PublishRequest("t", 0, "all"), bytes(kernel.encode([b"hello"]))),
    "PUBLISH answer": Specimen(
        Verb.PUBLISH, verbs.PublishAnswer(41, 1, 1_700_000_000_123_456_789, True), flags=_RESPONSE
    ),
    "READ request": Specimen(
        Verb.READ,
        verbs.ReadRequest(
            "t",
            3,
            38,
            65_536,
            500,
            1_000,
            1_600_000_000_000_000_000,
            1_800_000_000_000_000_000,
            "read_uncommitted",
            43,
            "include",
            ("key", "headers"),
        ),
    ),
    "READ answer": Specimen(Verb.READ, _READ, _stored(b"hello", b"again"), flags=_RECORDS),
    "SUBSCRIBE request": Specimen(
        Verb.SUBSCRIBE,
        verbs.SubscribeRequest("t", 3, 38, 1_048_576, 65_536, 1_800_000_000_000_000_000, "read_uncommitted"),
    ),
    "SUBSCRIBE push": Specimen(Verb.SUBSCRIBE, _READ, _stored(b"hello", b"again"), flags=_RECORDS | FrameFlags.PUSH),
    "CREDIT request": Specimen(Verb.CREDIT, verbs.CreditRequest(7, 65_536)),
    "UNSUBSCRIBE request": Specimen(Verb.UNSUBSCRIBE, verbs.UnsubscribeRequest(7)),
    "STATS request": Specimen(Verb.STATS, verbs.Empty()),
    "STATS answer": Specimen(
        Verb.STATS, verbs.Stats(1, 3_600_000_000_000, 42_000_000_000, 73_400_320, 3, 1_048_576), flags=_RESPONSE
    ),
    "JOIN request": Specimen(
        Verb.JOIN,
        verbs.JoinRequest(
            "g", "app", ("t",), "me", 10_000, "shared", "eager", "range", "latest", "offsets", False, 60_000, 50, 1_000
        ),
    ),
    "JOIN answer": Specimen(
        Verb.JOIN,
        verbs.Empty(),
        JoinAnswer("me", 4, "you", ["you", "me"], [PartitionName("t", 3)], True, "shared", "eager", 10_000, 3_000),
        JoinAnswer,
        _RESPONSE,
    ),
    "HEARTBEAT request": Specimen(
        Verb.HEARTBEAT, verbs.HeartbeatRequest("g", "me", 4), [PartitionName("t", 3)], list[PartitionName]
    ),
    "HEARTBEAT answer": Specimen(
        Verb.HEARTBEAT,
        verbs.Empty(),
        HeartbeatAnswer(
            5,
            True,
            "Rebalancing",
            "cooperative",
            "pending_revoke",
            [PartitionName("t", 3)],
            [PartitionName("t", 4)],
            1_700_000_010_000_000_000,
        ),
        HeartbeatAnswer,
        _RESPONSE,
    ),
    "POLL request": Specimen(Verb.POLL, verbs.PollRequest("g", "me", 4, 10, 65_536, 1_000, 60_000, 17)),
    "POLL answer": Specimen(
        Verb.POLL,
        PollAnswer(
            [
                DeliveredBatch(
                    "t",
                    3,
                    "0123456789ab" * 3 + "01234567",
                    2,
                    80,
                    0,
                    1_700_000_030_000_000_000,
                    43,
                    {42: 2},
                    30_000_000_000,
                )
            ],
            4,
            True,
            2,
            "max_in_flight",
            [PartitionGap("t", 3, 39, 41, "checksum mismatch")],
        ),
        _stored(b"hello", b"again"),
        flags=_RECORDS,
    ),
    "SETTLE request": Specimen(
        Verb.SETTLE,
        verbs.SettleRequest(
            Settlement("nack", 5_000_000_000, "later", "tx:1"),
            [verbs.SettlePart("t", 3, "0123456789ab" * 3 + "01234567", 2)],
        ),
        (41).to_bytes(8, "little") + (42).to_bytes(8, "little"),
    ),
    "SETTLE answer": Specimen(
        Verb.SETTLE,
        verbs.Empty(),
        [
            (
                SettledBatch(
                    1,
                    [Refusal(42, "RECEIPT_HANDLE_EXPIRED", "over", {"offset": 42})],
                    41,
                    1,
                    1,
                    1_700_000_005_000_000_000,
                ),
                None,
            ),
            (None, _ERROR_META),
        ],
        list[tuple[SettledBatch | None, verbs.ErrorMeta | None]],
        _RESPONSE,
    ),
    "CALL request": Specimen(
        Verb.CALL, verbs.CallRequest("groups.leave"), {"group": "g", "member_id": "me"}, dict[str, object]
    ),
    "CALL answer": Specimen(Verb.CALL, verbs.Empty(), ["g", "h"], list[str], _RESPONSE),
    "ERROR answer": Specimen(Verb.DESCRIBE_TOPIC, _ERROR_META, flags=_ERROR),
}


def golden() -> dict[str, bytes]:
    """The bytes of each frame as they are written down."""
    entries = FILE.read_text().strip().split("\n\n")
    return {name: bytes.fromhex("".join(lines)) for name, *lines in map(str.splitlines, entries)}


def written(name: str, frame: bytes) -> str:
    """The entry of a frame in the file."""
    text = frame.hex()
    lines: Sequence[str] = [text[at : at + _WIDTH] for at in range(0, len(text), _WIDTH)]
    return "\n".join((name, *lines))
