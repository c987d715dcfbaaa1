"""The leader of a partition: what it shows to readers and when, and what it keeps for those who follow."""

import pytest

from goqueue.broker.partition.leader import READERS_MAX, RECENT_BYTES_MAX, RECENT_MAX
from goqueue.errors import NotLeader
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.message import decode_messages
from goqueue.storage.reader import Chunk
from tests.broker.brokers import Node, values_of
from tests.broker.flapping import flap


def durable(node: Node) -> int:
    return node.leader().log.durable_offset


def values_in(chunk: Chunk | None) -> list[bytes] | None:
    if chunk is None:
        return None
    messages = decode_messages(chunk.records, TopicPartition("orders", 0), flags=chunk.flags)
    assert len(messages) == chunk.record_count
    return [message.value for message in messages]


# --- watchers ------------------------------------------------------------------------------------


def test_a_watcher_is_called_once_when_there_is_more_to_see(node: Node) -> None:
    node.create()
    leader, called = node.leader(), list[str]()
    leader.watch("stays", lambda: called.append("stays"))
    leader.watch("goes", lambda: called.append("goes"))
    leader.unwatch("goes")

    write = node.send([b"a"])
    assert called == []  # it is not on the medium, so nobody may see it
    node.done(write)
    node.publish(b"b")

    assert called == ["stays"]
    assert leader.high_watermark == 2


def test_a_watcher_is_called_when_the_topic_is_deleted(node: Node) -> None:
    node.create()
    called: list[str] = []
    node.leader().watch("reader", lambda: called.append("gone"))

    node.broker.topics.delete("orders")

    assert called == ["gone"]


# --- what is kept for those who follow -----------------------------------------------------------


def followed(node: Node) -> None:
    """Have somebody wait for what comes: without, nothing is kept."""
    node.leader().watch("follower", lambda: None)


def test_small_batches_are_kept_for_those_who_follow(node: Node) -> None:
    node.create()
    leader = node.leader()
    node.publish(b"unseen")
    for number in range(3):
        followed(node)
        node.publish(b"%d" % number)

    def recent(offset: int, *, max_bytes: int = 1_000, to_offset: int = 4) -> list[bytes] | None:
        return values_in(leader.recent(offset, max_bytes=max_bytes, to_offset=to_offset))

    assert recent(1) == [b"0", b"1", b"2"]
    assert recent(2) == [b"1", b"2"]
    assert recent(1, to_offset=2) == [b"0"]
    assert recent(1, max_bytes=1) is None
    assert recent(0) is None
    assert recent(4) is None


def test_no_more_is_kept_than_the_limits_say(node: Node) -> None:
    node.create()
    leader = node.leader()
    for number in range(2 * RECENT_MAX):
        followed(node)
        node.publish(b"%d" % number)

    kept = values_in(leader.recent(RECENT_MAX, max_bytes=1_000_000, to_offset=2 * RECENT_MAX))
    assert kept == [b"%d" % number for number in range(RECENT_MAX, 2 * RECENT_MAX)]
    assert leader.recent(RECENT_MAX - 1, max_bytes=1_000_000, to_offset=2 * RECENT_MAX) is None
    followed(node)
    end = node.publish(bytes(RECENT_BYTES_MAX)).first_offset + 1
    assert leader.recent(end - 2, max_bytes=1_000_000, to_offset=end) is None
    assert node.values(offset=end - 2) == [b"%d" % (2 * RECENT_MAX - 1), bytes(RECENT_BYTES_MAX)]


def test_a_reader_who_comes_back_finds_the_place_in_the_log(node: Node) -> None:
    node.create()
    node.publish(*[b"v"] * 2 * READERS_MAX)
    leader = node.leader()
    readers = [leader.reader(offset) for offset in range(READERS_MAX + 1)]

    for reader in readers:
        leader.keep(reader)

    assert leader.reader(READERS_MAX) is readers[-1]
    assert leader.reader(READERS_MAX) is not readers[-1]  # it is in use
    assert leader.reader(0) is not readers[0]  # there was no room for it


# --- the disk ------------------------------------------------------------------------------------


def test_a_partition_is_clean_when_all_of_it_is_on_the_medium(node: Node) -> None:
    node.create()
    leader = node.leader()
    assert leader.is_clean

    write = node.send([b"a"])

    assert (leader.is_clean, leader.waiting_count, leader.high_watermark) == (False, 1, 0)
    node.done(write)
    assert (leader.is_clean, leader.waiting_count, leader.high_watermark) == (True, 0, 1)


def test_a_change_to_interval_releases_who_waits_for_the_disk(node: Node) -> None:
    node.create(flush="group")
    altering = node.broker.topics.alter("orders", {"flush": "interval"})
    write = node.send([b"a"])
    reader = node.broker.messages.read("orders", 0, wait_ms=1_000)
    assert not write.is_done

    node.workers.run_one()  # the change; the flush is still under way

    assert altering.is_done
    assert write.is_done
    assert values_of(reader.result()) == [b"a"]


def test_a_change_to_group_takes_back_nothing_that_was_shown(node: Node) -> None:
    node.create(flush="none")
    node.publish(b"shown")
    assert durable(node) == 0

    altering = node.broker.topics.alter("orders", {"flush": "group"})
    node.workers.run_one()
    assert altering.is_done

    assert node.values() == [b"shown"]
    assert node.read().high_watermark == 1
    write = node.send([b"next"])
    assert node.values() == [b"shown"]
    node.workers.run_all()
    assert write.is_done
    assert node.values() == [b"shown", b"next"]
    assert durable(node) == 2


# --- the end of a leader ---------------------------------------------------------------------------


def test_a_leader_that_has_ended_writes_nothing_for_those_who_still_hold_it(node: Node) -> None:
    node.create()
    node.publish(b"a")
    ended = node.leader()
    ends = ended.log.next_offset, ended.ledger.log.next_offset

    flap(node, "orders")

    with pytest.raises(NotLeader):
        ended.append(kernel.encode([b"b"]))
    with pytest.raises(NotLeader):
        ended.ledger.write([(b"key", b"value")])
    assert isinstance(ended.end_transaction(1, 1, commit=True).error, NotLeader)
    assert (ended.log.next_offset, ended.ledger.log.next_offset) == ends
