"""What is acknowledged, when, and what becomes of messages that cannot be stored."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import (
    GoQueueError,
    InvalidBatch,
    InvalidMessage,
    InvalidPartition,
    InvalidRequest,
    MessageTooLarge,
    OutOfOrderSequence,
    PartitionNotFound,
)
from goqueue.record import kernel
from goqueue.record.header import Flags, Priority
from goqueue.record.headers import decode_headers
from goqueue.record.identity import BatchIdentity
from goqueue.service.messages import ProducerEpoch, Stored
from goqueue.service.new_message import NewMessage
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.wire.partitioning import partition_of_key
from tests.broker.brokers import Node, decoded, offsets_of, values_of


def place(result: Stored | GoQueueError) -> tuple[int, int]:
    assert isinstance(result, Stored), result
    return result.partition, result.offset


# --- acks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", ["leader", "all", None])
def test_in_group_mode_an_ack_comes_after_the_sync_and_readers_see_nothing_before(node: Node, acks: str | None) -> None:
    node.create(flush="group")

    pending = node.broker.messages.publish_records("orders", 0, kernel.encode([b"a", b"b"]), acks=acks)
    assert not pending.is_done
    assert node.read().record_count == 0
    assert node.read().high_watermark == 0
    assert node.broker.topics.offsets("orders") == [0]

    node.workers.run_all()
    assert pending.result()[:2] == (0, 2)
    assert node.values() == [b"a", b"b"]
    assert node.broker.topics.offsets("orders") == [2]


@pytest.mark.parametrize("flush", ["interval", "none"])
def test_in_the_other_modes_an_ack_comes_after_the_write(node: Node, flush: str) -> None:
    node.create(flush=flush)
    node.workers.run_all()

    pending = node.send([b"a"])

    assert pending.result().first_offset == 0
    assert values_of(node.read()) == [b"a"]


def test_without_acks_the_answer_comes_at_once_but_readers_wait_for_the_sync(node: Node) -> None:
    node.create()

    pending = node.broker.messages.publish_records("orders", 0, kernel.encode([b"a"]), acks="none")

    assert pending.result().first_offset == 0
    assert node.values() == []
    node.workers.run_all()
    assert node.values() == [b"a"]


def test_the_topic_says_which_acks_are_meant(node: Node) -> None:
    node.create(acks="none")

    assert node.send([b"a"]).is_done


def test_batches_that_come_during_a_sync_are_acknowledged_together_by_the_next_and_in_order(node: Node) -> None:
    node.create()
    order: list[int] = []
    pendings = [node.send([str(number).encode()]) for number in range(4)]
    for number, pending in enumerate(pendings):
        pending.then(lambda _, number=number: order.append(number))

    node.workers.run_one()
    assert order == [0]
    node.workers.run_one()
    assert order == [0, 1, 2, 3]
    assert not node.workers.jobs


@pytest.mark.parametrize("acks", ["", "ALL", "1", "most"])
def test_acks_that_do_not_exist_are_refused(node: Node, acks: str) -> None:
    node.create()

    with pytest.raises(InvalidRequest):
        node.broker.messages.publish_records("orders", 0, kernel.encode([b"a"]), acks=acks)
    with pytest.raises(InvalidRequest):
        node.broker.messages.publish("orders", [NewMessage(b"a")], acks=acks)


# --- batches of records --------------------------------------------------------------------------


def test_a_batch_with_one_bad_record_is_refused_whole(node: Node) -> None:
    node.create(max_message_bytes=10)
    broken = kernel.encode([b"a", b"b"])
    broken[len(broken) // 2] ^= 0xFF

    with pytest.raises(InvalidBatch):
        node.broker.messages.publish_records("orders", 0, broken)
    with pytest.raises(InvalidBatch):
        node.broker.messages.publish_records("orders", 0, bytearray())
    with pytest.raises(MessageTooLarge) as refused:
        node.send([b"ok", b"x" * 11])

    assert (refused.value.field, refused.value.size, refused.value.limit) == ("value", 11, 10)
    node.workers.run_all()
    assert node.values() == []
    assert node.publish(b"after").first_offset == 0


def test_a_producer_may_not_write_control_records(node: Node) -> None:
    node.create()

    with pytest.raises(InvalidBatch):
        node.broker.messages.publish_records("orders", 0, kernel.encode([b"a"], flags=Flags.CONTROL))


# --- messages ------------------------------------------------------------------------------------


def test_a_message_that_is_refused_leaves_the_others_and_is_told_its_index(node: Node) -> None:
    node.create(partitions=2, max_message_bytes=100)

    results = node.messages(
        NewMessage(b"0", partition=0),
        NewMessage(b"x" * 101, partition=0),
        NewMessage(b"2", partition=2),
        NewMessage(b"3", partition=-1),
        NewMessage(b"4", key=b"k" * 65_536, partition=0),
        NewMessage(b"5", partition=0, priority=5),
        NewMessage(b"6", headers={"h": "v" * 70_000}, partition=0),
        NewMessage(b"7", headers={"h": "\ud800"}, partition=0),
        NewMessage(b"8", partition=0),
        NewMessage(b"9", partition=1),
    )

    assert [type(result) for result in results] == [
        Stored, MessageTooLarge, PartitionNotFound, InvalidPartition, MessageTooLarge,
        InvalidMessage, MessageTooLarge, InvalidMessage, Stored, Stored,
    ]  # fmt: skip
    for index in (1, 4, 5, 6, 7):
        assert getattr(results[index], "index") == index  # noqa: B009
        assert "message 0" not in str(results[index])
    assert node.values(partition=0) == [b"0", b"8"]
    assert node.values(partition=1) == [b"9"]
    assert [place(results[index]) for index in (0, 8, 9)] == [(0, 0), (0, 1), (1, 0)]


def test_a_request_of_nothing_but_refused_messages_stores_nothing(node: Node) -> None:
    node.create()

    results = node.messages(*[NewMessage(b"v", priority=9)] * 3_000)

    assert {type(result) for result in results} == {InvalidMessage}
    assert [getattr(result, "index") for result in results] == list(range(3_000))  # noqa: B009
    assert node.values() == []
    assert node.messages() == []


def test_messages_keep_their_order_in_each_partition(node: Node) -> None:
    node.create(partitions=3)
    keys = [f"k{number % 7}".encode() for number in range(100)]

    results = node.messages(*[NewMessage(str(number).encode(), key=key) for number, key in enumerate(keys)])

    for number, key in enumerate(keys):
        assert place(results[number])[0] == partition_of_key(key, 3)
    for partition in range(3):
        values = [int(value) for value in node.values(partition=partition)]
        assert values == sorted(values)
        offsets = [place(results[value])[1] for value in values]
        assert all(after == before + 1 for before, after in pairwise(offsets))


def test_messages_without_a_key_take_turns_whatever_stands_between_them(node: Node) -> None:
    node.create(partitions=3)

    for _ in range(4):
        node.messages(NewMessage(b"turn"), NewMessage(b"key", key=b"a"), NewMessage(b"key", key=b"a"))
    for _ in range(5):
        node.messages(NewMessage(b"turn"), NewMessage(b"turn", key=None))

    counts = [node.values(partition=partition).count(b"turn") for partition in range(3)]
    assert sum(counts) == 14
    assert max(counts) - min(counts) <= 1


def test_an_empty_key_is_a_key_and_has_its_partition(node: Node) -> None:
    node.create(partitions=3)

    results = node.messages(*[NewMessage(b"v", key=b"") for _ in range(4)], NewMessage(None, key=b""))

    assert [place(result) for result in results] == [(partition_of_key(b"", 3), offset) for offset in range(5)]
    assert [message.key for message in decoded(node.read(partition=partition_of_key(b"", 3)))] == [b""] * 5


def test_keys_go_where_the_partitioner_of_the_topic_sends_them(node: Node) -> None:
    node.create(partitions=7, partitioner="murmur2")
    keys = [b"", b"abc", b"customer-42", b"\x00 "]

    results = node.messages(*[NewMessage(b"v", key=key) for key in keys])

    assert [place(result)[0] for result in results] == [partition_of_key(key, 7, "murmur2") for key in keys]


def test_turns_go_on_after_a_change_of_settings(node: Node) -> None:
    node.create(partitions=2)
    node.messages(NewMessage(b"turn"))

    node.done(node.broker.topics.alter("orders", {"max_message_bytes": 1_000}))
    node.messages(NewMessage(b"turn"))

    assert [len(node.values(partition=partition)) for partition in range(2)] == [1, 1]


def test_everything_a_message_has_is_stored(node: Node) -> None:
    node.create()

    node.messages(
        NewMessage(b"v", b"k", {"a": "b", "raw": b"\xff"}, priority=0),
        NewMessage(None, b"k"),
        NewMessage(b"", headers={"null": None}, priority=4),
        NewMessage(b"w", expires_at_ns=5, created_at_ns=-7, headers={"gq-expires-at": "forged"}),
    )

    first, tombstone, empty, expiring = decoded(node.read())
    assert (first.key, first.value, first.headers["a"], first.priority) == (b"k", b"v", "b", Priority.CRITICAL)
    assert first.headers["raw"].encode("utf-8", "surrogateescape") == b"\xff"
    assert (tombstone.tombstone, tombstone.key) == (True, b"k")
    assert (empty.tombstone, empty.key, empty.value, empty.priority) == (False, None, b"", Priority.BACKGROUND)
    assert empty.raw_headers == [("null", None)]
    assert decode_headers(expiring.encoded_headers or b"") == {"gq-expires-at": "5", "gq-created": "-7"}


@pytest.mark.parametrize("algorithm", ["zstd", "lz4"])
def test_the_topic_says_how_values_are_compressed(node: Node, algorithm: str) -> None:
    node.create(compression=algorithm)

    node.messages(NewMessage(b"a" * 10_000), NewMessage(b"tiny"), NewMessage(None, b"k"))

    assert node.broker.node.stats().size_bytes < 1_000
    assert [message.value for message in decoded(node.read())] == [b"a" * 10_000, b"tiny", b""]


def test_the_limit_of_a_value_holds_for_what_was_sent_not_for_what_is_left_of_it(node: Node) -> None:
    node.create(compression="zstd", max_message_bytes=1_000)

    (refused,) = node.messages(NewMessage(b"a" * 1_001))

    assert isinstance(refused, MessageTooLarge)


# --- messages of a producer ----------------------------------------------------------------------


def send(
    node: Node, *messages: NewMessage, producer: ProducerEpoch | None = None, sequence: int | None = None
) -> list[Stored | GoQueueError]:
    producer = producer or ProducerEpoch(7, 0)
    return node.done(node.broker.messages.publish("orders", messages, producer=producer, sequence=sequence))


def numbered(*sequences: int | None, partition: int = 0) -> list[NewMessage]:
    return [NewMessage(str(number).encode(), partition=partition, sequence=number) for number in sequences]


def test_a_request_that_is_sent_again_is_answered_with_the_first_offsets(node: Node) -> None:
    node.create()
    messages = [NewMessage(b"a", partition=0), NewMessage(b"b", partition=0)]

    first = send(node, *messages, sequence=0)
    again = send(node, *messages, sequence=0)
    following = send(node, *messages, sequence=2)

    assert [place(result) for result in first + following] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert [place(result) for result in again] == [(0, 0), (0, 1)]
    assert all(isinstance(result, Stored) and result.duplicate for result in again)
    assert node.values() == [b"a", b"b", b"a", b"b"]


def test_a_request_older_than_the_window_is_a_duplicate_without_an_offset(node: Node) -> None:
    node.create()
    for sequence in range(6):
        send(node, NewMessage(b"v"), sequence=sequence)

    (old,) = send(node, NewMessage(b"v"), sequence=0)

    assert isinstance(old, Stored)
    assert (old.offset, old.duplicate) == (-1, True)
    assert len(node.values()) == 6


def test_runs_of_sequences_are_batches_and_a_gap_refuses_what_is_behind_it(node: Node) -> None:
    node.create()

    results = send(node, *numbered(0, 1, 2, 5, 6))

    assert [type(result) for result in results] == [Stored] * 3 + [OutOfOrderSequence] * 2
    assert node.values() == [b"0", b"1", b"2"]


def test_sequences_count_for_each_partition(node: Node) -> None:
    node.create(partitions=2)
    messages = [*numbered(0, 1, partition=0), *numbered(0, partition=1), *numbered(2, partition=0)]

    results = send(node, *messages)

    assert [place(result) for result in results] == [(0, 0), (0, 1), (1, 0), (0, 2)]
    assert all(isinstance(result, Stored) and result.duplicate for result in send(node, *messages))


def test_messages_with_and_without_a_number_go_together(node: Node) -> None:
    node.create()

    results = send(node, *numbered(None, 0, 1, None, None, 2))

    assert [place(result)[1] for result in results] == [0, 1, 2, 3, 4, 5]
    assert [place(result)[1] for result in send(node, *numbered(0, 1))] == [1, 2]


def test_one_sequence_for_two_partitions_is_refused(node: Node) -> None:
    node.create(partitions=2)

    with pytest.raises(InvalidRequest):
        send(node, NewMessage(b"a", partition=0), NewMessage(b"b", partition=1), sequence=0)

    node.workers.run_all()
    assert node.values(partition=0) == node.values(partition=1) == []


@pytest.mark.parametrize("bad", [NewMessage(b"x" * 101), NewMessage(b"v", priority=9)])
@pytest.mark.parametrize("common", [True, False])
def test_a_refused_message_leaves_a_gap_where_its_producer_counts(node: Node, bad: NewMessage, common: bool) -> None:
    node.create(max_message_bytes=100)
    messages = [NewMessage(b"0"), NewMessage(b"1"), bad, NewMessage(b"3")]
    if not common:
        messages = [message._replace(sequence=number) for number, message in enumerate(messages)]

    for _ in range(2):
        results = send(node, *messages, sequence=0 if common else None)
        assert [type(result) for result in results[:2]] == [Stored, Stored]
        assert isinstance(results[2], MessageTooLarge | InvalidMessage)
        assert isinstance(results[3], OutOfOrderSequence)

    assert node.values() == [b"0", b"1"]
    assert [place(result)[1] for result in send(node, NewMessage(b"2"), NewMessage(b"3"), sequence=2)] == [2, 3]


def test_what_was_stored_beside_a_refused_message_is_recognised_after_a_restart(
    node: Node, disk: MemoryDisk, clock: ManualClock
) -> None:
    node.create()
    messages = [NewMessage(b"0"), NewMessage(b"1"), NewMessage(b"2", priority=9)]
    send(node, *messages, sequence=0)

    restarted = Node(disk.crash(keep="nothing"), clock)
    results = send(restarted, *messages, sequence=0)

    assert [place(result)[1] for result in results[:2]] == [0, 1]
    assert restarted.values() == [b"0", b"1"]


def test_a_user_cannot_forge_who_sent_a_batch(node: Node, disk: MemoryDisk, clock: ManualClock) -> None:
    node.create()

    send(node, NewMessage(b"v", headers={"gq-producer": "99:5:0:1"}), sequence=0)

    restarted = Node(disk.crash(keep="nothing"), clock)
    (again,) = send(restarted, NewMessage(b"v"), sequence=0)
    assert isinstance(again, Stored)
    assert again.duplicate


def test_a_batch_of_records_that_lies_about_its_headers_is_an_invalid_batch(node: Node) -> None:
    node.create()
    records = kernel.encode([b"v"], headers=[{"a": "b", "gq-producer": "7:0:0:1"}])
    records[36] = 9

    with pytest.raises(InvalidBatch):
        node.broker.messages.publish_records("orders", 0, records)
    with pytest.raises(InvalidBatch):
        node.broker.messages.publish_records("orders", 0, kernel.encode([b"v"], headers=[{"gq-producer": "7:0:0"}]))


def test_a_duplicate_of_what_is_not_on_the_disk_yet_waits_for_it(node: Node) -> None:
    node.create()
    first = node.send_as(BatchIdentity(7, 0, 0, 2))
    again = node.send_as(BatchIdentity(7, 0, 0, 2))

    assert not first.is_done
    assert not again.is_done
    node.workers.run_all()
    assert first.result()[:2] == again.result()[:2] == (0, 2)
    assert again.result().duplicate


message_shapes = st.builds(
    NewMessage,
    st.sampled_from([b"", b"v", b"x" * 11, None]),
    st.sampled_from([None, b"", b"a", b"b"]),
    st.sampled_from([None, {}, {"h": "v"}, {"\ud800": "v"}]),
    st.sampled_from([None, None, 0, 1, 2, -1]),
    st.sampled_from([2, 2, 0, 5]),
    deliver_at_ns=st.none(),  # one that is not due is stored, but not found
    expires_at_ns=st.none(),
    sequence=st.none(),
)


@given(st.lists(message_shapes, max_size=12))
def test_every_message_has_its_result_and_every_offset_given_holds_its_message(messages: list[NewMessage]) -> None:
    node = Node(MemoryDisk(), ManualClock())
    node.create(partitions=2, max_message_bytes=10)

    results = node.messages(*messages)

    assert len(results) == len(messages)
    stored = {place(result): messages[at] for at, result in enumerate(results) if isinstance(result, Stored)}
    found = {
        (partition, message.offset): message
        for partition in range(2)
        for message in decoded(node.read(partition=partition))
    }
    assert found.keys() == stored.keys()
    for where, message in found.items():
        assert message.value == (stored[where].value or b"")
        assert message.key == (stored[where].key or None)
        assert message.tombstone == (stored[where].value is None)


def test_what_was_read_shows_the_offsets_that_were_told(node: Node) -> None:
    node.create()

    stored = [node.publish(b"a", b"b").first_offset, node.publish(b"c").first_offset]

    assert stored == [0, 2]
    assert offsets_of(node.read()) == [0, 1, 2]
