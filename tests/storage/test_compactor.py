"""Compactions on a disk that fails: a log keeps its records, and says so if it has to stop."""

import pytest

from goqueue.storage.log import Log
from goqueue.testing import FaultyDisk, MemoryDisk
from tests.storage.faulty import check_stopped
from tests.storage.logs import DIRECTORY, NOW_NS, append, open_log, read_all

COMPACTED = {"segment_bytes": 1_000, "cleanup": "compact"}


def fill_keys(log: Log, count: int) -> dict[bytes, bytes]:
    """Append values under a few keys, over and over; what each key has in the end."""
    latest = {}
    for number in range(count):
        key, value = b"%d" % (number % 7), b"%d" % number
        append(log, [value], keys=[key], now_ns=NOW_NS + number)
        latest[key] = value
    return latest


def latest_of(log: Log) -> dict[bytes, bytes]:
    messages, gaps = read_all(log)
    assert not gaps
    return {message.key: message.value for message in messages if message.key is not None}


@pytest.mark.parametrize("operation", ["open", "pread", "append", "sync", "sync_directory", "rename", "remove"])
def test_a_compaction_that_fails_anywhere_costs_no_record(operation: str) -> None:
    faults = 0
    for skip in range(100):
        disk = MemoryDisk()
        faulty = FaultyDisk(disk, seed=0)
        log = open_log(faulty, **COMPACTED)
        latest = fill_keys(log, 100)
        log.flush()
        faulty.fail_next(operation, skip=skip)  # type: ignore[arg-type]

        log.maintain(now_ns=NOW_NS, monotonic_ns=0)

        if not faulty.injected:
            break
        faults += 1
        faulty.heal()
        assert latest_of(log) == latest, skip
        for keep in ("nothing", "everything"):
            recovered = open_log(disk.crash(keep=keep), **COMPACTED)
            assert latest_of(recovered) == latest, (skip, keep)
            assert recovered.next_offset == recovered.durable_offset == 100
            assert not recovered.damage
    else:
        raise AssertionError("the compaction never came to its end")
    assert faults


def test_a_disk_that_fails_while_copies_are_put_in_place_stops_the_log(disk: MemoryDisk, faulty: FaultyDisk) -> None:
    log = open_log(faulty, **COMPACTED)
    latest = fill_keys(log, 100)
    log.flush()
    faulty.fail_next("rename", path_suffix=".index")

    log.maintain(now_ns=NOW_NS, monotonic_ns=0)

    check_stopped(log, "clean-up")
    assert latest_of(log) == latest
    assert latest_of(open_log(disk.crash(keep="nothing"), **COMPACTED)) == latest


def test_compaction_ahead_of_the_checkpoint_costs_no_record(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED)
    number = 0
    while log.segment_count < 4:  # the checkpoint stands at the very end of a segment that is sealed by now
        log.flush()
        append(log, [b"%d" % number] * 2, keys=[b"a", b"b"], now_ns=NOW_NS + number)
        number += 1
    durable = log.durable_offset

    log._run(log.begin_compaction(now_ns=NOW_NS))

    for keep, end in (("nothing", durable), ("everything", log.next_offset)):
        recovered = open_log(disk.crash(keep=keep), **COMPACTED)
        assert recovered.next_offset == end
        assert latest_of(recovered) == {b"a": b"%d" % (end // 2 - 1), b"b": b"%d" % (end // 2 - 1)}
        assert not recovered.damage


def test_a_compacted_log_survives_the_loss_of_its_checkpoint(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED)
    latest = fill_keys(log, 100)
    log.maintain(now_ns=NOW_NS, monotonic_ns=0)
    log.close()
    disk.remove(f"{DIRECTORY}/checkpoint")

    log = open_log(disk, **COMPACTED)

    assert latest_of(log) == latest
    assert (log.next_offset, log.damage) == (100, [])
