"""What transactions did to a partition stays so through retention, compaction, damage and every start."""

from collections.abc import Callable
from errno import ENOSPC
from itertools import count

import pytest

from goqueue.broker.partition.ledger import PartitionLedger
from goqueue.broker.partition.producer_state import SEQUENCES_KEY, TRANSACTIONS_KEY
from goqueue.record import kernel
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from goqueue.testing.inode import Keep
from tests.broker.brokers import Node, decoded
from tests.broker.consumers import Consumer, restarted
from tests.broker.flapping import flap
from tests.broker.transactional import Owner, now_and_later, uncommitted

FRESH = count()
SEGMENT = 1_024
SNAPSHOT_S = 11
"""After so long the next flush takes snapshots with it."""


def stable(node: Node) -> int:
    return node.leader().last_stable_offset


def delivered(node: Node) -> list[bytes]:
    """What a new group gets."""
    return sorted(got.value for got in Consumer(node, f"fresh-{next(FRESH)}").poll(1_000))


def value(name: str, number: int) -> bytes:
    return f"{name}-{number}".encode().ljust(100, b".")


def fill(node: Node, owner: Owner, name: str, *, count: int, commit: bool) -> list[bytes]:
    """A transaction over some segments."""
    owner.begin()
    values = [value(name, number) for number in range(count)]
    for one in values:
        owner.publish(one)
        node.publish(value(f"plain-{name}", len(node.values())))
    owner.commit() if commit else owner.abort()
    return values


def of(name: str, values: list[bytes]) -> list[bytes]:
    return [one for one in values if one.startswith(f"{name}-".encode())]


def indexes(disk: MemoryDisk) -> list[str]:
    return [path for path in disk.paths() if path.endswith(".txnindex") and "orders/0/log" in path]


def ledger_keys(ledger: PartitionLedger) -> list[bytes]:
    return [key for key, _ in ledger.facts()]


def disk_of(node: Node) -> MemoryDisk:
    assert isinstance(node.disk, MemoryDisk)
    return node.disk


def a_past(node: Node) -> tuple[Owner, list[bytes]]:
    """Aborted and committed transactions over many segments, with a snapshot in the middle; what is committed."""
    node.create(segment_bytes=SEGMENT)
    owner = Owner(node)
    fill(node, owner, "aborted", count=8, commit=False)
    fill(node, owner, "committed", count=8, commit=True)
    node.clock.advance(SNAPSHOT_S)
    fill(node, owner, "aborted-late", count=8, commit=False)
    node.publish(b"last")
    assert TRANSACTIONS_KEY in ledger_keys(node.leader().ledger)
    return owner, node.values()


# --- starts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["nothing", "everything"])
def test_all_is_as_it_was_after_any_number_of_starts(node: Node, keep: Keep) -> None:
    _, values = a_past(node)
    assert of("committed", values)
    assert not of("aborted", values) + of("aborted-late", values)
    total = node.broker.topics.describe("orders").total_messages

    for _ in range(3):
        node = restarted(node, keep=keep)
        assert node.values() == values
        assert delivered(node) == sorted(values)
        assert stable(node) == node.leader().high_watermark
        assert node.broker.topics.describe("orders").total_messages == total
        node.pass_time(SNAPSHOT_S, step=5)

    node.broker.close()
    node = restarted(node, keep="nothing")
    assert node.values() == values
    again = Owner(node)
    again.begin()
    again.publish(b"next")
    again.commit()
    assert node.values() == [*values, b"next"]
    assert node.broker.topics.describe("orders").total_messages == total + 1


def damaged(disk: MemoryDisk, path: str) -> None:
    disk.flip_bit(path, 20, 3)


def cut(disk: MemoryDisk, path: str) -> None:
    disk.write(path, disk.read(path)[:-7])


def emptied(disk: MemoryDisk, path: str) -> None:
    disk.write(path, b"")


def removed(disk: MemoryDisk, path: str) -> None:
    disk.remove(path)
    disk.sync_directory(path.rpartition("/")[0])


@pytest.mark.parametrize("harm", [damaged, cut, emptied, removed])
@pytest.mark.parametrize("which", ["first", "last", "all"])
def test_an_index_of_what_was_aborted_that_is_harmed_is_made_anew(
    node: Node, harm: Callable[[MemoryDisk, str], None], which: str
) -> None:
    _, values = a_past(node)
    node.broker.close()
    disk = disk_of(node).crash(keep="nothing")
    paths = indexes(disk)
    assert len(paths) > 3
    whole = {path: disk.read(path) for path in paths}
    for path in {"first": paths[:1], "last": paths[-1:], "all": paths}[which]:
        harm(disk, path)

    again = Node(disk, node.clock)
    assert again.values() == values
    assert delivered(again) == sorted(values)
    again.publish(b"more")
    again.broker.close()

    healed = disk.crash(keep="nothing")
    assert {path: healed.read(path) for path in indexes(healed)} == whole
    assert Node(healed, node.clock).values() == [*values, b"more"]


@pytest.mark.parametrize("key", [SEQUENCES_KEY, TRANSACTIONS_KEY])
@pytest.mark.parametrize("snapshot", [None, b"", b"\xc1", b"\x92\x01\xa1x", b"\x92\xc4\x02\x92\x90\x80", b"\x93" * 50])
def test_a_snapshot_that_is_missing_or_nobody_understands_is_as_good_as_none(
    node: Node, key: bytes, snapshot: bytes | None
) -> None:
    _, values = a_past(node)
    total = node.broker.topics.describe("orders").total_messages
    log = node.leader().partition.ledger
    log.append(kernel.encode([snapshot], keys=[key]), now_ns=node.clock.wall_ns())
    log.flush()

    again = restarted(node, keep="nothing")

    assert again.values() == values
    assert delivered(again) == sorted(values)
    assert stable(again) == again.leader().high_watermark
    assert again.broker.topics.describe("orders").total_messages == total


def test_without_the_ledger_the_log_tells_everything(node: Node) -> None:
    _, values = a_past(node)
    disk = disk_of(node).crash(keep="nothing")
    for path in disk.paths():
        if "orders/0/ledger" in path or path in indexes(disk):
            removed(disk, path)

    again = Node(disk, node.clock)

    assert again.values() == values
    assert stable(again) == again.leader().high_watermark


def test_a_snapshot_that_cannot_be_written_costs_nothing(disk: MemoryDisk, clock: ManualClock) -> None:
    faulty = FaultyDisk(disk, seed=1)
    node = Node(faulty, clock)
    node.create(segment_bytes=SEGMENT)
    owner = Owner(node)
    for number in range(4):
        clock.advance(SNAPSHOT_S)
        faulty.fail_next("pwrite", ENOSPC, path_suffix="orders/0/ledger/00000000000000000000.log")
        faulty.fail_next("open", ENOSPC, path_suffix=".txnindex.new")
        fill(node, owner, f"aborted{number}", count=3, commit=False)
        fill(node, owner, f"committed{number}", count=3, commit=True)
    values = node.values()
    assert len(faulty.injected) >= 4

    again = Node(disk.crash(keep="nothing"), clock)

    assert again.values() == values
    assert not [one for one in values if one.startswith(b"aborted")]


# --- retention -----------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [False, True])
def test_retention_may_take_the_beginning_of_an_open_transaction(node: Node, commit: bool) -> None:
    node.create(segment_bytes=SEGMENT, retention="60s")
    owner = Owner(node, timeout_ms=900_000)
    owner.begin()
    for number in range(30):
        owner.publish(value("old", number))
    node.pass_time(70, step=5)
    owner.publish(b"young")
    node.publish(b"plain")
    node.pass_time(15, step=5)
    start = node.leader().log.start_offset
    assert start > 20
    assert node.values() == []
    assert stable(node) == start

    owner.commit() if commit else owner.abort()

    expected = [*([b"young"] if commit else []), b"plain"]
    for one in now_and_later(node):
        assert [found for found in one.values() if not found.startswith(b"old")] == expected
        assert commit or one.values() == expected
        assert stable(one) == one.leader().high_watermark


def test_retention_may_take_all_of_an_open_transaction(node: Node) -> None:
    node.create(segment_bytes=SEGMENT, retention="60s")
    owner = Owner(node, timeout_ms=900_000)
    owner.begin()
    for number in range(20):
        owner.publish(value("old", number))
    node.pass_time(70, step=5)
    for number in range(12):
        node.publish(value("plain", number))
    node.pass_time(15, step=5)
    assert stable(node) == node.leader().high_watermark
    assert [one[:5] for one in node.values()] == [b"plain"] * 12

    assert owner.commit().status == "committed"

    assert [one[:5] for one in node.values()] == [b"plain"] * 12
    assert [one[:5] for one in restarted(node, keep="nothing").values()] == [b"plain"] * 12


def test_what_was_aborted_stays_hidden_when_retention_has_taken_a_part_of_it(node: Node) -> None:
    node.create(segment_bytes=SEGMENT, retention="60s")
    owner = Owner(node)
    total = 0
    for number in range(6):
        fill(node, owner, f"aborted{number}", count=4, commit=False)
        node.pass_time(20, step=5)
    values = node.values()
    assert 0 < len(values) < 24
    assert all(one.startswith(b"plain") for one in values)
    log = node.leader().log
    total = node.broker.topics.describe("orders").total_messages
    assert total == len(uncommitted(node)) == log.next_offset - log.start_offset - node.leader().producers.markers.total

    again = restarted(node, keep="nothing")

    assert again.values() == values
    assert again.broker.topics.describe("orders").total_messages == total


# --- compaction ----------------------------------------------------------------------------------


def keyed(owner: Owner, name: str, keys: range) -> None:
    for number in keys:
        owner.publish(value(name, number), keys=[b"k%d" % number])


def plain(node: Node, name: str, keys: range) -> None:
    for number in keys:
        records = kernel.encode([value(name, number)], keys=[b"k%d" % number])
        node.done(node.broker.messages.publish_records("orders", 0, records))


def compacted(node: Node) -> None:
    """Seal what there is, and let it be compacted."""
    for number in range(12):
        node.publish(value("filler", number))
    node.pass_time(31, step=2)
    assert node.leader().log.cleaned_offset > 0


def last_of_each_key(node: Node) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    offset = 0
    while (result := node.read(offset=offset)).record_count:
        found |= {message.key: message.value for message in decoded(result) if message.key}
        offset = result.next_offset
    return found


@pytest.mark.parametrize("tombstone_retention", ["0s", "24h"])
@pytest.mark.parametrize("is_snapshot_lost", [False, True])
def test_compaction_keeps_what_was_committed_and_never_lets_what_was_aborted_stand_for_a_key(
    node: Node, tombstone_retention: str, is_snapshot_lost: bool
) -> None:
    node.create(cleanup="compact", segment_bytes=SEGMENT, tombstone_retention=tombstone_retention)
    owner = Owner(node)
    plain(node, "first", range(10))
    owner.begin()
    keyed(owner, "committed", range(5))
    owner.commit()
    owner.begin()
    keyed(owner, "aborted", range(10))
    owner.abort()
    node.clock.advance(SNAPSHOT_S)
    expected = {b"k%d" % number: value("committed" if number < 5 else "first", number) for number in range(10)}
    assert last_of_each_key(node) == expected

    compacted(node)
    values = node.values()
    assert last_of_each_key(node) == expected
    assert not of("aborted", values)
    assert not of("aborted", uncommitted(node))
    total = len(uncommitted(node))
    assert node.leader().log.next_offset > total
    assert node.broker.topics.describe("orders").total_messages == total

    disk = disk_of(node).crash(keep="nothing")
    if is_snapshot_lost:
        for path in disk.paths():
            if "orders/0/ledger" in path:
                removed(disk, path)
    for _ in range(2):
        again = Node(disk, node.clock)
        assert again.values() == values
        assert again.broker.topics.describe("orders").total_messages == total
        assert sorted(delivered(again)) == sorted(values)
        assert stable(again) == again.leader().high_watermark
        disk = disk.crash(keep="nothing")


def test_compaction_leaves_all_of_an_open_transaction(node: Node) -> None:
    node.create(cleanup="compact", segment_bytes=SEGMENT)
    owner = Owner(node, timeout_ms=900_000)
    plain(node, "first", range(10))
    plain(node, "second", range(10))
    owner.begin()
    keyed(owner, "open", range(10))
    keyed(owner, "open", range(10))
    plain(node, "third", range(5))
    compacted(node)
    assert len(of("open", uncommitted(node))) == 20
    assert node.leader().log.cleaned_offset <= stable(node)

    owner.commit()
    expected = {b"k%d" % number: value("third" if number < 5 else "open", number) for number in range(10)}
    assert last_of_each_key(node) == expected
    compacted(node)
    assert last_of_each_key(node) == expected
    assert last_of_each_key(restarted(node, keep="nothing")) == expected


def test_a_compacted_partition_goes_on_with_aborts_and_commits(node: Node) -> None:
    node.create(cleanup="compact", segment_bytes=SEGMENT, tombstone_retention="0s")
    owner = Owner(node)
    expected: dict[bytes, bytes] = {}
    for turn in range(4):
        owner.begin()
        keyed(owner, f"aborted{turn}", range(8))
        owner.abort()
        owner.begin()
        keyed(owner, f"committed{turn}", range(turn, 8))
        owner.commit()
        expected |= {b"k%d" % number: value(f"committed{turn}", number) for number in range(turn, 8)}
        compacted(node)
        assert last_of_each_key(node) == expected
        assert node.broker.topics.describe("orders").total_messages == len(uncommitted(node))
        node = restarted(node, keep="nothing")
        assert node.broker.topics.describe("orders").total_messages == len(uncommitted(node))
        owner = Owner(node)
        assert last_of_each_key(node) == expected
        assert stable(node) == node.leader().high_watermark


# --- snapshots tell nothing that is not so -------------------------------------------------------


def test_a_snapshot_of_transactions_in_records_that_a_crash_took_is_not_believed(node: Node) -> None:
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.publish(b"a")
    owner.commit()
    leader = node.leader()
    assert leader.producers.transactions is not None
    leader.producers.transactions.appended(7, 7, first_offset=2, record_count=3)
    leader.partition.log._segments.next_offset = 5  # as it would be if these had been written
    facts = leader.producers.snapshots()
    leader.partition.log._segments.next_offset = 2
    leader.ledger.write(facts)
    leader.partition.ledger.flush()

    again = restarted(node, keep="nothing")
    for number in range(4):
        again.publish(b"%d" % number)

    assert again.values() == [b"a", b"0", b"1", b"2", b"3"]


def test_no_snapshot_passes_over_what_was_aborted_before_its_index_is_there(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    faulty = FaultyDisk(disk, seed=1)
    node = Node(faulty, clock)
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.publish(b"never")
    owner.abort()
    faulty.fail_next("open", ENOSPC, path_suffix=".txnindex.new")
    clock.advance(SNAPSHOT_S)
    node.publish(b"a")  # its flush takes a snapshot, for which the index has to be there
    assert [fault.operation for fault in faulty.injected] == ["open"]
    assert TRANSACTIONS_KEY not in ledger_keys(node.leader().ledger)
    assert Node(disk.crash(keep="nothing"), clock).values() == [b"a"]


def test_a_snapshot_that_had_to_wait_for_its_index_is_taken_later(disk: MemoryDisk, clock: ManualClock) -> None:
    faulty = FaultyDisk(disk, seed=1)
    node = Node(faulty, clock)
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.publish(b"never")
    owner.abort()
    for _ in range(2):
        faulty.fail_next("open", ENOSPC, path_suffix=".txnindex.new")
        clock.advance(SNAPSHOT_S)
        node.publish(b"a")
        assert TRANSACTIONS_KEY not in ledger_keys(node.leader().ledger)

    clock.advance(SNAPSHOT_S)
    node.publish(b"a")

    assert TRANSACTIONS_KEY in ledger_keys(node.leader().ledger)
    assert Node(disk.crash(keep="nothing"), clock).values() == [b"a"] * 3


@pytest.mark.parametrize("jobs", range(5))
def test_a_leader_that_ends_while_its_snapshot_waits_for_the_index_writes_no_snapshot(
    disk: MemoryDisk, clock: ManualClock, jobs: int
) -> None:
    node = Node(disk, clock)
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.publish(b"never")
    owner.abort()
    clock.advance(SNAPSHOT_S)
    node.send([b"a"])

    for _ in range(jobs):
        if node.workers.jobs:
            node.workers.run_one()
    written = TRANSACTIONS_KEY in ledger_keys(node.leader().ledger)
    flap(node, "orders")
    node.workers.run_all()
    node.publish(b"b")

    assert (TRANSACTIONS_KEY in ledger_keys(node.leader().ledger)) == written
    assert node.values() == Node(disk.crash(keep="nothing"), clock).values() == [b"a", b"b"]


def test_no_snapshot_takes_the_place_of_a_marker_that_is_not_written_yet(disk: MemoryDisk, clock: ManualClock) -> None:
    faulty = FaultyDisk(disk, seed=1)
    node = Node(faulty, clock)
    node.create()
    owner = Owner(node)
    owner.begin()
    owner.publish(b"a")
    faulty.fail_next("pwrite", ENOSPC, path_suffix="orders/0/log/00000000000000000000.log")
    owner.committing()
    node.workers.run_all()
    clock.advance(SNAPSHOT_S)
    node.publish(b"plain")  # its flush could take a snapshot
    assert node.values() == [b"a", b"plain"]

    again = Node(disk.crash(keep="nothing"), clock)
    again.workers.run_all()
    lost = disk_of(again).crash(keep="nothing")
    for path in lost.paths():
        if "orders/0/ledger" in path:
            removed(lost, path)

    assert Node(lost, clock).values() == [b"a", b"plain"]
