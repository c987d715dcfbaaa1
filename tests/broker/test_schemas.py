"""Schemas while the broker runs: they last, and messages are held against them wherever they come from."""

import json
from collections.abc import Callable, Sequence
from errno import EIO

import pytest

from goqueue import events
from goqueue.broker.broker import Broker
from goqueue.broker.coordination import SCHEMAS_TOPIC
from goqueue.broker.local_service import LocalService
from goqueue.errors import (
    GoQueueError,
    InvalidBatch,
    InvalidMessage,
    NotLeader,
    SchemaIncompatible,
    SchemaRejected,
    StorageFailed,
    StorageFull,
    SubjectNotFound,
)
from goqueue.record import compression, kernel
from goqueue.record.header import Flags
from goqueue.record.headers import PRODUCER
from goqueue.record.identity import BatchIdentity
from goqueue.service.messages import Stored
from goqueue.service.new_message import NewMessage
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk, PowerLoss
from goqueue.wire.schema_reports import NewSchema, SchemaInfo
from tests.broker.brokers import ROOT, ManualWorkers, Node

ORDER = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
TEXT = '{"type": "string"}'
GOOD, BAD = b'{"n": 1}', b'{"n": "x"}'


def new(text: str) -> NewSchema:
    return NewSchema(text, "JSON")


def register(node: Node, subject: str = "orders-value", text: str = ORDER) -> SchemaInfo:
    return node.done(node.broker.schemas.register(subject, new(text)))


def reopened(node: Node) -> Node:
    node.broker.close()
    return Node(node.disk, node.clock)


def framed(schema_id: int, payload: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + payload


# --- the registry lasts --------------------------------------------------------------------------


def test_a_broker_has_the_verbs_of_its_service(node: Node) -> None:
    service = LocalService.of(node.broker)

    assert service.schemas.subjects().result() == []


def test_nothing_is_made_before_the_first_schema(node: Node) -> None:
    schemas = node.broker.schemas
    assert (schemas.level(), schemas.mode()) == ("BACKWARD", "READWRITE")
    with pytest.raises(SubjectNotFound):
        schemas.delete_subject("orders-value")
    assert node.broker.topics.list(internal=True) == []

    register(node)

    assert node.broker.topics.list(internal=True) == ["__schemas"]


def test_what_was_registered_is_there_after_a_restart(node: Node) -> None:
    info = register(node)
    node.done(node.broker.schemas.set_level(None, "FULL"))
    node.done(node.broker.schemas.set_mode("other", "READONLY"))
    node.done(node.broker.schemas.set_policy("orders-value", "LENIENT"))

    schemas = reopened(node).broker.schemas

    assert schemas.get("orders-value") == info
    assert (schemas.level(), schemas.mode("other")) == ("FULL", "READONLY")
    assert (schemas.policy("orders-value"), schemas.policy()) == ("LENIENT", "")


def test_a_schema_is_answered_when_it_is_on_the_medium_and_holds_before(node: Node) -> None:
    register(node, "first")
    pending = node.broker.schemas.register("orders-value", new(ORDER))
    again = node.broker.schemas.register("orders-value", new(ORDER))

    assert not pending.is_done
    assert not again.is_done
    assert node.broker.schemas.get("orders-value").version == 1

    assert node.done(pending) == node.done(again)


def test_two_who_make_the_journal_at_once_share_it(node: Node) -> None:
    one = node.broker.schemas.register("a", new(ORDER))
    two = node.broker.schemas.register("b", new(TEXT))
    three = node.broker.schemas.register("a", new(ORDER))
    assert not one.is_done

    assert (node.done(one).id, node.done(two).id, node.done(three).id) == (1, 2, 1)
    assert reopened(node).broker.schemas.subjects() == ["a", "b"]


def test_what_is_refused_is_refused_at_once(node: Node) -> None:
    register(node)

    with pytest.raises(SchemaIncompatible):
        node.broker.schemas.register("orders-value", new(TEXT))


def test_all_verbs_reach_the_registry(node: Node) -> None:
    schemas = node.broker.schemas
    info = register(node)

    assert schemas.versions("orders-value") == [1]
    assert schemas.lookup("orders-value", new(ORDER)) == schemas.by_id(1) == schemas.by_guid(info.guid) == info
    assert schemas.find() == [info]
    assert schemas.find(prefix="x") == []
    assert [use.subject for use in schemas.uses(1)] == ["orders-value"]
    assert schemas.referenced_by("orders-value", "1") == []
    assert schemas.with_metadata("orders-value", {}, deleted=True).version == 1 if info.metadata else True
    assert not schemas.compatibility("orders-value", new(TEXT)).is_compatible
    assert schemas.rendered(1, "serialized") == schemas.rendered(1, "") == ORDER
    assert node.done(schemas.set_level("orders-value", "none")) == "NONE"
    assert schemas.level("orders-value") == "NONE"
    assert node.done(schemas.delete_level("orders-value")) == "NONE"
    assert node.done(schemas.set_mode(None, "IMPORT", force=True)) == "IMPORT"
    assert schemas.mode("orders-value", default_to_global=True) == "IMPORT"
    assert node.done(schemas.delete_mode(None)) == "IMPORT"
    assert node.done(schemas.delete_version("orders-value", "1")) == 1
    assert node.done(schemas.delete_version("orders-value", "1", permanent=True)) == 1
    assert schemas.subjects(deleted=True) == []


def test_a_protobuf_schema_can_be_had_serialized(node: Node) -> None:
    text = 'syntax = "proto3"; message Order { int64 n = 1; }'
    node.done(node.broker.schemas.register("p", NewSchema(text, "PROTOBUF")))

    assert node.broker.schemas.rendered(1, "") == text
    assert node.broker.schemas.rendered(1, "serialized") != text


def test_a_full_disk_refuses_a_schema_and_changes_nothing(clock: ManualClock) -> None:
    disk = MemoryDisk()
    node = Node(disk, clock)
    register(node)
    disk.capacity_bytes = disk.used_bytes

    with pytest.raises(StorageFull):
        node.broker.schemas.register("other", new(TEXT))
    assert node.broker.schemas.subjects() == ["orders-value"]

    disk.capacity_bytes = None
    assert register(node, "other", TEXT).id == 2


def test_a_disk_that_fails_refuses_a_schema_and_changes_nothing(clock: ManualClock) -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    node = Node(disk, clock)
    register(node)
    disk.fail_next("pwrite", EIO, path_suffix=".log")

    with pytest.raises(StorageFailed):
        node.broker.schemas.register("other", new(TEXT))

    assert node.broker.schemas.subjects() == ["orders-value"]


def test_a_flush_that_fails_is_no_answer(clock: ManualClock) -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    node = Node(disk, clock)
    register(node)
    disk.fail_next("sync", EIO, path_suffix=".log")

    pending = node.broker.schemas.register("other", new(TEXT))
    with pytest.raises(StorageFailed):
        node.done(pending)
    with pytest.raises(StorageFailed):
        node.done(node.broker.schemas.register("other", new(TEXT)))


def test_what_was_answered_survives_a_crash_at_any_step(clock: ManualClock) -> None:
    def work(disk: MemoryDisk, answered: list[str]) -> None:
        node = Node(disk, clock)
        register(node, "a", ORDER)
        answered.append("a")
        register(node, "b", TEXT)
        answered.append("b")
        node.done(node.broker.schemas.delete_subject("a"))
        answered.append("a is gone")
        node.done(node.broker.schemas.delete_subject("a", permanent=True))
        answered.append("for good")
        register(node, "c", '{"type": "null"}')
        answered.append("c")

    whole = MemoryDisk()
    work(whole, [])
    for step in range(0, whole.steps, 17):
        disk, answered = MemoryDisk(power_off_after=step), list[str]()
        try:
            work(disk, answered)
        except PowerLoss:
            pass
        schemas = Node(disk.crash(seed=step, keep="random"), clock).broker.schemas

        ids = {info.subject: info.id for info in schemas.find(deleted=True)}
        assert ids.items() <= {"a": 1, "b": 2, "c": 3}.items()
        assert {one for one in answered if one in ("b", "c")} <= ids.keys()
        assert ("a" in schemas.subjects()) or "a" not in answered or "b" in answered
        if "a is gone" in answered:
            assert "a" not in schemas.subjects()
        if "for good" in answered:
            assert "a" not in ids
        if "c" not in ids:
            assert schemas.find(deleted=True) == [schemas.by_id(one) for one in ids.values()]


def test_schemas_outlive_compaction(disk: MemoryDisk, clock: ManualClock) -> None:
    node = Node(disk, clock)
    register(node)
    for number in range(200):
        node.done(node.broker.schemas.set_level(f"s{number % 5}", ["FULL", "NONE"][number % 2]))
    before = node.broker.schemas.find()

    node.pass_time(30, step=1.0)

    assert reopened(node).broker.schemas.find() == before


# --- publishing ----------------------------------------------------------------------------------


def send_records(node: Node, values: Sequence[bytes | None]) -> list[Exception | None]:
    """Publish as a native client does: what became of the batch, for each."""
    try:
        node.done(node.broker.messages.publish_records("orders", 0, kernel.encode(values)))
    except GoQueueError as error:
        return [error] * len(values)
    return [None] * len(values)


def send_messages(node: Node, values: Sequence[bytes | None]) -> list[Exception | None]:
    """Publish as over HTTP."""
    results = node.messages(*[NewMessage(value, key=b"k") for value in values])
    return [None if isinstance(result, Stored) else result for result in results]


DOORS = pytest.mark.parametrize("send", [send_records, send_messages])
Send = Callable[[Node, Sequence[bytes | None]], list[Exception | None]]


@DOORS
def test_a_message_that_breaks_its_schema_is_refused(node: Node, send: Send) -> None:
    node.create()
    info = register(node)

    (error,) = send(node, [BAD])

    assert isinstance(error, SchemaRejected)
    assert error.facts() == {
        "subject": "orders-value",
        "version": 1,
        "schema_id": info.id,
        "path": "/n",
        "reason": '"x" is not of type integer',
        "index": 0,
        "field": "value",
    }
    assert node.values() == []
    assert send(node, [GOOD]) == [None]
    assert node.values() == [GOOD]


def test_one_bad_record_refuses_its_batch_and_is_named(node: Node) -> None:
    node.create()
    register(node)

    errors = send_records(node, [GOOD, GOOD, BAD, BAD])

    assert isinstance(errors[0], SchemaRejected)
    assert errors[0].index == 2
    assert node.values() == []


def test_one_bad_message_leaves_the_others(node: Node) -> None:
    node.create()
    register(node)

    errors = send_messages(node, [GOOD, BAD, GOOD, b"{"])

    assert [type(error) for error in errors] == [type(None), SchemaRejected, type(None), SchemaRejected]
    assert [error.index for error in errors if isinstance(error, SchemaRejected)] == [1, 3]
    assert node.values() == [GOOD, GOOD]


@DOORS
def test_a_topic_without_a_subject_takes_anything(node: Node, send: Send) -> None:
    node.create()
    register(node, "payments-value")

    assert send(node, [b"anything", b""]) == [None, None]


@DOORS
def test_validation_can_be_switched_off(node: Node, send: Send) -> None:
    node.create(schema_validation="off")
    register(node)

    assert send(node, [BAD]) == [None]


@DOORS
def test_validation_can_be_required(node: Node, send: Send) -> None:
    node.create(schema_validation="required")

    (error,) = send(node, [GOOD])
    assert isinstance(error, SchemaRejected)
    assert "requires a schema" in error.reason

    register(node)
    assert send(node, [GOOD]) == [None]


@DOORS
def test_the_setting_can_change(node: Node, send: Send) -> None:
    node.create()
    register(node)
    node.done(node.broker.topics.alter("orders", {"schema_validation": "off"}))
    assert send(node, [BAD]) == [None]

    node.done(node.broker.topics.alter("orders", {"schema_validation": None}))

    assert isinstance(send(node, [BAD])[0], SchemaRejected)


@DOORS
def test_tombstones_are_not_looked_at(node: Node, send: Send) -> None:
    node.create(schema_validation="required")
    register(node)
    register(node, "orders-key", '{"type": "null"}')

    if send is send_records:
        node.done(node.broker.messages.publish_records("orders", 0, kernel.encode([None], keys=[b"k"])))
    else:
        assert send(node, [None]) == [None]


@DOORS
def test_the_prefix_is_understood(node: Node, send: Send) -> None:
    node.create()
    schema_id = register(node).id

    assert send(node, [framed(schema_id, GOOD)]) == [None]
    assert isinstance(send(node, [framed(schema_id, BAD)])[0], SchemaRejected)
    assert isinstance(send(node, [framed(77, GOOD)])[0], SchemaRejected)


def test_the_header_is_understood_at_both_doors(node: Node) -> None:
    node.create()
    old = register(node).id
    node.done(node.broker.schemas.set_level("orders-value", "NONE"))
    register(node, "orders-value", TEXT)
    headers = {"schema-id": str(old), "other": "x"}

    (stored,) = node.messages(NewMessage(GOOD, headers=headers))
    assert isinstance(stored, Stored)
    node.done(node.broker.messages.publish_records("orders", 0, kernel.encode([GOOD, b'"a"'], headers=[headers, None])))
    with pytest.raises(SchemaRejected):
        node.broker.messages.publish_records("orders", 0, kernel.encode([b'"a"'], headers=[headers]))
    with pytest.raises(SchemaRejected, match="no id"):
        node.broker.messages.publish_records("orders", 0, kernel.encode([GOOD], headers=[{"schema-id": "x"}]))
    lookalike = {"not-schema-id": "x", "x": "schema-id"}
    node.done(node.broker.messages.publish_records("orders", 0, kernel.encode([b'"a"'], headers=[lookalike])))


@DOORS
def test_keys_have_a_subject_of_their_own(node: Node, send: Send) -> None:
    node.create()
    register(node, "orders-key", TEXT)

    if send is send_messages:
        (error,) = send(node, [b"anything"])  # the key is b"k"
    else:
        with pytest.raises(SchemaRejected) as raised:
            node.broker.messages.publish_records("orders", 0, kernel.encode([b"anything"], keys=[b"k"]))
        error = raised.value
        node.done(node.broker.messages.publish_records("orders", 0, kernel.encode([b"x", b"y"], keys=[b'"k"', None])))
    assert isinstance(error, SchemaRejected)
    assert (error.subject, error.field) == ("orders-key", "key")


@pytest.mark.parametrize("algorithm", ["zstd", "lz4"])
def test_compressed_values_are_looked_into(node: Node, algorithm: str) -> None:
    node.create(compression=algorithm)
    register(node)
    long = json.dumps({"n": 1, "note": "x" * 1_000}).encode()
    wrong = json.dumps({"n": "1", "note": "x" * 1_000}).encode()

    def packed(*values: bytes) -> bytearray:
        compressed = [compression.compress(value, algorithm) for value in values]
        return kernel.encode(compressed, flags=Flags.COMPRESSED)

    node.done(node.broker.messages.publish_records("orders", 0, packed(long, long)))
    with pytest.raises(SchemaRejected) as raised:
        node.broker.messages.publish_records("orders", 0, packed(long, wrong))
    assert (raised.value.index, raised.value.path) == (1, "/n")
    assert [type(result) for result in node.messages(NewMessage(long), NewMessage(wrong))] == [Stored, SchemaRejected]


@pytest.mark.parametrize("value", [b"not compressed", compression.compress(b"x" * 100, "zstd")[:-4], b""])
def test_a_value_that_only_says_it_is_compressed_is_refused(node: Node, value: bytes) -> None:
    node.create()
    register(node)

    with pytest.raises(InvalidMessage):
        node.broker.messages.publish_records("orders", 0, kernel.encode([GOOD, value], flags=[0, Flags.COMPRESSED]))


def test_a_small_batch_that_is_large_inside_is_refused(node: Node) -> None:
    node.create()
    register(node, "orders-value", "true")
    bomb = compression.compress(b'"' + b"x" * (40 * 1024 * 1024) + b'"', "zstd")

    node.done(node.broker.messages.publish_records("orders", 0, kernel.encode([bomb], flags=Flags.COMPRESSED)))
    with pytest.raises(InvalidMessage, match="when it is decompressed"):
        node.broker.messages.publish_records("orders", 0, kernel.encode([bomb] * 50, flags=Flags.COMPRESSED))


@pytest.mark.parametrize("records", [b"", b"GQ", b"\x00" * 40, bytes(kernel.encode([GOOD]))[:-1]])
def test_a_batch_that_is_none_is_refused_as_ever(node: Node, records: bytes) -> None:
    node.create()
    register(node)

    with pytest.raises(InvalidBatch):
        node.broker.messages.publish_records("orders", 0, bytearray(records))


def test_a_batch_that_is_stored_already_is_not_judged_again(node: Node) -> None:
    node.create()
    node.done(node.broker.schemas.set_level(None, "NONE"))

    def batch() -> bytearray:
        return kernel.encode([BAD], headers=[{PRODUCER: BatchIdentity(7, 0, 0, 1).encode()}])

    first = node.done(node.broker.messages.publish_records("orders", 0, batch()))
    register(node)
    again = node.done(node.broker.messages.publish_records("orders", 0, batch()))

    assert (again.duplicate, again.first_offset) == (True, first.first_offset)


def test_a_dead_letter_is_not_judged(node: Node) -> None:
    register(node, "orders.dlq-value", '{"type": "null"}')
    node.create()
    node.publish(b"poison")
    node.create("orders.dlq")
    target = node.broker.partitions.target("orders.dlq", like="orders")

    leader = node.done(target).leaders[0]
    leader.append(kernel.encode([b"poison"]))

    with pytest.raises(SchemaRejected):
        node.broker.messages.publish_records("orders.dlq", 0, kernel.encode([b"poison"]))


# --- what is told --------------------------------------------------------------------------------


def observed(disk: MemoryDisk, clock: ManualClock) -> tuple[Node, list[events.SchemaChecked]]:
    node = Node(disk, clock)
    node.broker.close()
    told: list[events.SchemaChecked] = []

    def observe(event: events.Event) -> None:
        if isinstance(event, events.SchemaChecked):
            told.append(event)

    node.workers = ManualWorkers()
    node.broker = Broker.open(disk, ROOT, clock=clock, workers=node.workers, observe=observe)
    return node, told


def test_a_batch_is_told_of_once(disk: MemoryDisk, clock: ManualClock) -> None:
    node, told = observed(disk, clock)
    node.create()
    send_records(node, [GOOD])
    assert told == []
    register(node)

    send_records(node, [GOOD, GOOD])
    send_records(node, [GOOD, BAD, GOOD])
    send_messages(node, [GOOD, BAD, GOOD])
    node.broker.schemas.check("orders", [BAD])

    assert [(event.topic, event.accepted, event.refused) for event in told] == [
        ("orders", 2, 0),
        ("orders", 0, 3),
        ("orders", 2, 1),
    ]


def test_values_can_be_checked_without_publishing_them(node: Node) -> None:
    node.create()
    register(node)

    assert node.broker.schemas.check("orders", [GOOD, BAD, b""]) == [
        None,
        '/n: "x" is not of type integer',
        "not JSON: Input data was truncated",
    ]
    assert node.broker.schemas.check("unknown", [BAD]) == [None]
    assert node.values() == []


def test_the_numbers_say_what_is_validated(node: Node) -> None:
    node.create()
    node.create("quiet", schema_validation="off")
    for subject in ("orders-value", "quiet-value", "nothing-value", "orders-key", "orders"):
        register(node, subject)

    details = node.broker.schemas.stats().details

    assert {one.subject: one.validation_enabled for one in details} == {
        "orders-value": True,
        "quiet-value": False,
        "nothing-value": False,
        "orders-key": True,
        "orders": True,
    }


# --- a coordinator that ends and begins again ----------------------------------------------------


def test_requests_about_schemas_are_refused_while_the_node_does_not_lead_them(node: Node) -> None:
    info = register(node)
    partitions = node.broker.partitions
    partitions.resign(SCHEMAS_TOPIC, 0)
    schemas = node.broker.schemas

    for call in (
        lambda: schemas.register("other", new(TEXT)),
        lambda: schemas.register("orders-value", new(ORDER)),
        lambda: schemas.get("orders-value"),
        lambda: schemas.by_id(info.id),
        lambda: schemas.subjects(),
        lambda: schemas.level(),
        lambda: schemas.set_level(None, "FULL"),
        lambda: schemas.stats(),
    ):
        with pytest.raises(NotLeader, match="__schemas-0") as caught:
            call()
        assert caught.value.retryable

    node.workers.run_all()
    partitions.become_leader(SCHEMAS_TOPIC, 0)
    assert schemas.get("orders-value") == info
    assert register(node) == info
    assert register(node, "other", TEXT).id == info.id + 1


def test_messages_are_validated_with_the_schemas_that_were_known_last(node: Node) -> None:
    node.create(schema_validation="required")
    register(node)
    node.broker.partitions.resign(SCHEMAS_TOPIC, 0)

    (refused,) = node.messages(NewMessage(b"no JSON"))

    assert isinstance(refused, SchemaRejected)


def test_a_change_that_was_not_committed_fails_and_is_known_after_the_next_attach(node: Node) -> None:
    register(node)
    pending = node.broker.schemas.register("other", new(TEXT))
    again = node.broker.schemas.register("other", new(TEXT))

    node.broker.partitions.resign(SCHEMAS_TOPIC, 0)
    for one in (pending, again):
        with pytest.raises(NotLeader):
            one.result()
    node.workers.run_all()
    node.broker.partitions.become_leader(SCHEMAS_TOPIC, 0)
    node.workers.run_all()

    assert node.done(node.broker.schemas.register("other", new(TEXT))).version == 1
    assert node.broker.schemas.subjects() == ["orders-value", "other"]
