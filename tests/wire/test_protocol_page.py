"""The page from which clients in other languages are written says what the code does."""

import inspect
import re

import pytest

from goqueue.doors.native.config import NativeConfig
from goqueue.record import compression, header, headers, kernel
from goqueue.record.header import Flags
from goqueue.record.identity import BatchIdentity
from goqueue.service.groups import EXTENSION_NS_MAX, POLL_MESSAGES_MAX
from goqueue.service.messages import READ_BYTES_MAX, WAIT_MS_MAX
from goqueue.topics.config import PARTITIONS_MAX
from goqueue.transactions import sequences
from goqueue.wire import codes, frames, verbs
from goqueue.wire.frames import FrameFlags
from goqueue.wire.partitioning import key_hash, partition_of_key
from goqueue.wire.verbs import Verb
from tests.wire import notation, protocol_page
from tests.wire.golden import FRAMES, Specimen

NOT_ON_THE_PAGE = {
    "Empty": "the page writes -",
    "SettledMessage": "the answer to one receipt, which only HTTP has",
}
STRUCTS = {name: struct for name, struct in notation.wire_structs().items() if name not in NOT_ON_THE_PAGE}
CALLS = notation.call_verbs()
RECORD_TIME_NS = 1_700_000_000_123_456_789
FIRST_OFFSET = 41


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_has_the_fields_that_the_page_says(name: str) -> None:
    struct = STRUCTS[name]
    heading = f"struct {name} (array)" if struct.__struct_config__.array_like else f"struct {name}"

    assert protocol_page.structs().get(name) == [heading, *notation.fields(struct)]


def test_the_page_has_no_struct_that_is_not_there() -> None:
    assert protocol_page.structs().keys() - STRUCTS.keys() == {"Example"}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_the_arguments_and_the_result_that_the_page_says(name: str) -> None:
    assert protocol_page.calls().get(name) == notation.signature(name, CALLS[name])


def test_the_page_has_no_call_that_is_not_there() -> None:
    assert protocol_page.calls().keys() == CALLS.keys()


def test_every_verb_has_the_number_the_structs_and_the_payloads_that_the_page_says() -> None:
    rows = protocol_page.table("kind", "verb", "request", "payload", "answer", "payload of the answer")

    assert {verb: int(kind) for kind, verb, *_ in rows} == {verb.name: int(verb) for verb in Verb}
    for _, verb, request, payload, answer, answered in rows:
        assert _written(FRAMES[f"{verb} request"]) == (request, payload.removesuffix(" or -"))
        if answer != "not answered":
            name = "push" if verb == "SUBSCRIBE" else "answer"
            assert _written(FRAMES[f"{verb} {name}"]) == (answer, answered)


def _written(specimen: Specimen) -> tuple[str, str]:
    meta = type(specimen.meta).__name__
    meta = "-" if meta == "Empty" else meta
    if specimen.verb == Verb.CALL and specimen.flags:
        return meta, "the result"
    if specimen.payload_type is not bytes:
        return meta, notation.type_name(specimen.payload_type)
    if not specimen.payload:
        return meta, "-"
    return meta, "records" if specimen.payload.startswith(header.MAGIC) else "offsets"


def test_the_flags_of_frames_and_of_records_are_those_on_the_page() -> None:
    of_frames, of_records = protocol_page.tables("flag", "name", "meaning")

    assert {name: int(flag, 16) for flag, name, _ in of_frames} == {flag.name: int(flag) for flag in FrameFlags}
    assert {name: int(flag, 16) for flag, name, _ in of_records} == {flag.name: int(flag) for flag in Flags}


def test_every_error_code_is_on_the_page_with_whether_it_is_retryable() -> None:
    rows = protocol_page.table("code", "retryable", "meaning")

    assert {code: retryable == "yes" for code, retryable, _ in rows} == {
        code: row.exception.retryable for code, row in codes.TABLE.items()
    }


def test_errors_have_the_facts_that_the_page_names() -> None:
    for code, _, meaning in protocol_page.table("code", "retryable", "meaning"):
        exception = codes.TABLE[code].exception
        known = set(re.findall(r"self\.(\w+) = ", inspect.getsource(exception)))
        facts = re.search(r"[Ff]acts? (`\w+`(?:, `\w+`)*)", meaning)

        assert facts is None or set(re.findall(r"\w+", facts[1])) <= known, code


def test_the_limits_are_those_on_the_page() -> None:
    config = NativeConfig()
    limits = {
        "bytes of a frame": frames.FRAME_BYTES_MAX,
        "bytes of a meta": frames.META_BYTES_MAX,
        "requests in progress per connection": config.requests_max,
        "subscriptions per connection": config.subscriptions_max,
        "time for HELLO": config.hello_timeout_ms,
        "time for a frame to arrive whole": config.frame_timeout_ms,
        "wait_ms of READ and POLL": WAIT_MS_MAX,
        "max_bytes of READ and POLL": READ_BYTES_MAX,
        "max_messages of POLL": POLL_MESSAGES_MAX,
        "parts of a SETTLE": verbs.PARTS_MAX,
        "length of an extension": EXTENSION_NS_MAX // 10**6,
        "bytes of a value": header.VALUE_BYTES_MAX,
        "bytes of a key": header.KEY_BYTES_MAX,
        "bytes of the headers of a record": header.HEADERS_BYTES_MAX,
        "bytes that a value is decompressed to": compression.DECOMPRESSED_BYTES_MAX,
        "batches in flight per producer and partition": sequences.WINDOW,
        "partitions of a topic": PARTITIONS_MAX,
    }

    rows = protocol_page.table("limit", "value")

    assert {name: int(value.removesuffix(" ms").replace(",", "")) for name, value in rows} == limits


def test_the_checksums_on_the_page_are_those_of_the_kernel() -> None:
    for _, *data, crc in protocol_page.vectors("crc32c"):
        raw = b"" if data == ["(no", "bytes)"] else bytes.fromhex(data[0])

        assert f"{kernel.crc32c(raw):08x}" == crc


def test_the_frames_on_the_page_are_those_of_the_code() -> None:
    record = bytes(kernel.encode([b"hello"]))
    expected = {
        "HELLO": Specimen(Verb.HELLO, verbs.HelloRequest(client_id="docs")).encode(1),
        "PUBLISH": Specimen(Verb.PUBLISH, verbs.PublishRequest("t", 0), record).encode(7),
    }

    assert {name: raw for _, name, raw in protocol_page.vectors("frame")} == {
        name: raw.hex() for name, raw in expected.items()
    }


def test_the_records_on_the_page_are_stamped_by_the_kernel_as_the_page_says() -> None:
    lines = protocol_page.vectors("record")
    pairs = [(sent, stored) for (_, sent), (_, stored) in zip(lines[1::3], lines[2::3], strict=True)]
    assert len(pairs) == 7

    for sent, stored in pairs:
        records = bytearray.fromhex(sent)
        kernel.stamp(records, first_offset=FIRST_OFFSET, timestamp=RECORD_TIME_NS)
        assert records.hex() == stored


def test_the_records_on_the_page_hold_what_the_page_says() -> None:
    lines = protocol_page.vectors("record")
    sent = [bytes.fromhex(line[1]) for line in lines[1::3]]

    identity = BatchIdentity(81_985_529_216_486_895, 0, 0, 2).encode()
    marked = {"a": None, "b": "", "gq-created": str(10**9 * 1_700_000_000)}
    assert sent[:5] == [
        bytes(kernel.encode([b"hello"])),
        bytes(kernel.encode([b"hello"], keys=[b"order-7"], headers=[{"type": "created"}], priorities=1)),
        bytes(kernel.encode([None], keys=[b"order-7"])),
        bytes(kernel.encode([b"a", b"b"], headers=[{headers.PRODUCER: identity}, None])),
        bytes(kernel.encode([b"v"], keys=[b""], headers=[marked])),
    ]
    for raw, value in zip(sent[5:], (b"a" * 40, b"a" * 80), strict=True):
        assert raw[3] == Flags.COMPRESSED
        assert compression.decompress(raw[header.HEADER_BYTES :]) == value


def test_the_keys_on_the_page_go_where_the_page_says() -> None:
    lines = protocol_page.vectors("key")

    assert [line[2] for line in lines] == ["murmur3"] * 5 + ["murmur2"] * 5
    for _, key, partitioner, hashed, _, _, of_6, _, _, of_1000 in lines:
        raw = b"" if key == "-" else bytes.fromhex(key)
        assert f"{key_hash(partitioner)(raw):08x}" == hashed
        assert [partition_of_key(raw, count, partitioner) for count in (6, 1_000)] == [int(of_6), int(of_1000)]


def test_the_identities_of_batches_on_the_page_can_be_parsed() -> None:
    parsed = [BatchIdentity.parse(line[0].encode()) for line in protocol_page.vectors("81985529216486895:0:0:2")]

    assert [(one.first_sequence, one.record_count, one.transaction) for one in parsed] == [
        (0, 2, 0),
        (2, 50, 0),
        (52, 1, 3),
    ]


def test_the_headers_that_the_code_writes_are_on_the_page() -> None:
    listed = {name.strip("`") for name, _ in protocol_page.table("header", "meaning")}

    assert listed == notation.own_headers()


def test_the_page_is_wrapped() -> None:
    assert [line for line in protocol_page.text().splitlines() if len(line) > protocol_page.COLUMNS_MAX] == []


def test_links_within_the_page_lead_somewhere() -> None:
    titles = re.findall(r"^#+ (.*)$", protocol_page.text(), re.MULTILINE)
    anchors = {title.lower().replace(" ", "-") for title in titles}

    assert set(re.findall(r"\]\(#([^)]*)\)", protocol_page.text())) <= anchors
