from concurrent.futures import ThreadPoolExecutor
from errno import ENOSPC
from random import Random

import pytest

from goqueue import events
from goqueue.errors import Conflict
from goqueue.record import kernel
from goqueue.record.message import StoredMessage
from goqueue.storage.compaction import Source, SwapJob, dirty_ratio
from goqueue.storage.config import LogConfig
from goqueue.storage.jobs import Job
from goqueue.storage.log import Log
from goqueue.testing import FaultyDisk, MemoryDisk, PowerLoss
from tests.storage.logs import DIRECTORY, NOW_NS, ORIGIN, append, open_log, read_all

HOUR_NS = 3_600_000_000_000
COMPACTED = {"segment_bytes": 600, "cleanup": "compact"}


def put(log: Log, key: str, value: str | None, *, now_ns: int = NOW_NS) -> None:
    append(log, [None if value is None else value.encode()], keys=[key.encode()], now_ns=now_ns)


def table_of(log: Log) -> dict[bytes, bytes]:
    """What a reader who plays the log back from its start ends up with."""
    table: dict[bytes, bytes] = {}
    messages, gaps = read_all(log)
    assert not gaps
    for message in messages:
        assert message.key
        if message.tombstone:
            table.pop(message.key, None)
        else:
            table[message.key] = message.value
    return table


def compact(log: Log, *, now_ns: int = NOW_NS) -> None:
    log.flush()
    log.maintain(now_ns=now_ns, monotonic_ns=0)


def test_the_dirty_ratio_is_the_share_of_new_sealed_bytes() -> None:
    sources = [Source(0, 10, 300), Source(10, 20, 100)]

    assert dirty_ratio(sources, 0) == 1.0
    assert dirty_ratio(sources, 10) == 0.25
    assert dirty_ratio(sources, 20) == 0.0
    assert dirty_ratio([], 0) == 0.0


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_it_is_known_how_many_records_are_left_and_a_start_need_not_count_them(disk: MemoryDisk, rounds: int) -> None:
    log = open_log(disk, **COMPACTED)
    for round in range(rounds):
        for number in range(40):
            put(log, f"{number % 7}", f"{round}-{number}")
        compact(log)
        assert log.record_count == len(read_all(log)[0]) < log.next_offset
    log.close()

    again = open_log(disk, **COMPACTED)
    assert again.record_count == log.record_count == len(read_all(again)[0])
    crashed = open_log(disk.crash(keep="nothing"), **COMPACTED)
    assert crashed.record_count == len(read_all(crashed)[0])


def test_only_the_last_value_of_each_key_stays(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED)
    for round in range(20):
        for key in "abc":
            put(log, key, f"{key}{round}")
    before = table_of(log)
    size = log.size

    compact(log)

    assert table_of(log) == before == {b"a": b"a19", b"b": b"b19", b"c": b"c19"}
    assert log.size < size / 2


def test_offsets_do_not_change(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED)
    for step in range(60):
        put(log, f"k{step % 7}", str(step))
    before = {message.offset: message for message in read_all(log)[0]}

    compact(log)

    after = read_all(log)[0]
    assert 7 <= len(after) < 60
    assert all(before[message.offset] == message for message in after)
    assert log.next_offset == 60
    for offset in range(60):
        chunk = log.read(offset)
        if chunk.record_count:
            first = kernel.decode(chunk.records, ORIGIN, StoredMessage)[0].offset
            assert first == min(message.offset for message in after if message.offset >= offset)


def test_small_results_are_joined(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED)
    for step in range(200):
        put(log, f"k{step % 3}", str(step))
    assert log.segment_count > 10

    compact(log)

    assert log.segment_count == 2


def test_records_without_a_key_stay(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED)
    for step in range(40):
        append(log, [f"{step}".encode()])
        put(log, "k", str(step))

    compact(log)

    messages, _ = read_all(log)
    assert [message.value for message in messages if message.key is None] == [b"%d" % step for step in range(40)]
    assert len([message for message in messages if message.key]) < 20


def test_an_empty_key_is_a_key_that_is_compacted_and_deleted(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED)
    for step in range(40):
        append(log, [b"without"])
        put(log, "", str(step))
    put(log, "", None)
    for step in range(40):
        put(log, "k", str(step))

    compact(log, now_ns=NOW_NS)

    messages, _ = read_all(log)
    assert len([message for message in messages if message.key is None]) == 40
    assert [message.tombstone for message in messages if message.key == b""] == [True]


def test_a_tombstone_stays_for_its_time_and_then_goes(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED)
    put(log, "gone", "x")
    put(log, "gone", None)
    for step in range(40):
        put(log, "k", str(step))

    compact(log, now_ns=NOW_NS + 23 * HOUR_NS)
    assert [message.tombstone for message in read_all(log)[0] if message.key == b"gone"] == [True]

    for step in range(200):
        put(log, "k", str(step), now_ns=NOW_NS + 24 * HOUR_NS)
    compact(log, now_ns=NOW_NS + 25 * HOUR_NS)
    assert not [message for message in read_all(log)[0] if message.key == b"gone"]


def test_a_log_that_only_deletes_is_never_compacted(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=600)
    for step in range(100):
        put(log, "k", str(step))

    compact(log)

    assert len(read_all(log)[0]) == 100


def test_compaction_waits_until_enough_is_new(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED)
    for step in range(100):
        put(log, f"k{step}", str(step))
    compact(log)
    log.flush()

    for step in range(30):
        put(log, f"k{step}", "new")
    log.flush()

    assert log.begin_compaction(now_ns=NOW_NS) is None


@pytest.mark.parametrize("bound", range(0, 101, 7))
def test_a_compacted_log_can_be_cut_at_its_bound_and_lacks_no_key(disk: MemoryDisk, bound: int) -> None:
    log = open_log(disk, **COMPACTED)
    for step in range(100):
        put(log, f"k{step % 6}", str(step))
    log.flush()

    log._run(log.begin_compaction(now_ns=NOW_NS, to_offset=bound))
    log.truncate(bound)

    assert log.cleaned_offset <= bound
    assert table_of(log) == {b"k%d" % (step % 6): b"%d" % step for step in range(bound)}


def test_compaction_goes_no_further_than_to_offset(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED)
    for step in range(100):
        put(log, "k", str(step))
    log.flush()

    job = log.begin_compaction(now_ns=NOW_NS, to_offset=50)
    assert job is not None
    log._run(job)

    offsets = [message.offset for message in read_all(log)[0]]
    assert offsets[-51:] == list(range(49, 100))
    assert len(offsets) < 70


def test_the_table_of_keys_is_bounded_and_later_runs_do_the_rest(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED, compaction_keys_max=10)
    for step in range(300):
        put(log, f"k{step % 100}", str(step))
    expected = table_of(log)

    for _ in range(60):
        compact(log)

    assert table_of(log) == expected
    assert len(read_all(log)[0]) < 250


def test_readers_go_on_while_a_compaction_runs_in_a_thread(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=4_000, cleanup="compact")
    for step in range(2_000):
        put(log, f"k{step % 50}", str(step))
    log.flush()
    expected = table_of(log)
    reader = log.reader(0)
    seen = reader.read(max_bytes=1_000).record_count
    with ThreadPoolExecutor(1) as threads:
        job = log.begin_compaction(now_ns=NOW_NS)
        while job:
            running = threads.submit(job.run)
            while not running.done():
                assert log.read(0, max_bytes=1_000).record_count
                put(log, "during", "x")
            job = log.complete(job, running.exception())  # type: ignore[arg-type]

    while chunk := reader.read(max_bytes=1_000).record_count:
        seen += chunk
    assert seen < 2_500
    assert {key: value for key, value in table_of(log).items() if key != b"during"} == expected


def test_a_truncation_meanwhile_wins(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED)
    for step in range(100):
        put(log, "k", str(step))
    log.flush()
    job = log.begin_compaction(now_ns=NOW_NS)
    assert job is not None
    job.run()

    log.truncate(30)

    assert log.complete(job) is None
    assert [message.offset for message in read_all(log)[0]] == list(range(30))
    assert not [path for path in disk.paths() if path.endswith(".cleaned")]


def test_a_truncation_after_the_swap_was_decided_wins_too(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED)
    for step in range(100):
        put(log, "k", str(step))
    log.flush()
    job = log.begin_compaction(now_ns=NOW_NS)
    assert job is not None
    job.run()
    swap = log.complete(job)
    assert swap is not None
    swap.run()

    log.truncate(30)

    assert log.complete(swap) is None
    log = open_log(disk.crash(keep="nothing"), **COMPACTED)
    assert [message.offset for message in read_all(log)[0]] == list(range(30))


@pytest.mark.parametrize(("operation", "suffix"), [("append", ".cleaned"), ("open", "compaction.new")])
def test_a_disk_too_full_for_the_copies_or_the_note_of_the_swap_only_delays_the_compaction(
    operation: str, suffix: str
) -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    log = open_log(disk, **COMPACTED)
    for step in range(100):
        put(log, f"k{step % 5}", str(step))
    log.flush()
    disk.fail_next(operation, ENOSPC, path_suffix=suffix)

    compact(log)

    assert log.failure is None
    assert len(read_all(log)[0]) == 100
    compact(log, now_ns=NOW_NS + HOUR_NS)
    assert len(read_all(log)[0]) < 50


def test_a_damaged_segment_is_not_compacted_away(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED)
    for step in range(100):
        put(log, f"k{step % 5}", str(step))
    log.flush()
    disk.flip_bit(f"{DIRECTORY}/{0:020d}.log", 100, 3)

    compact(log)

    messages, gaps = read_all(log)
    assert len(messages) == 99
    assert [(gap.first_offset, gap.next_offset) for gap in gaps] == [(2, 3)]
    assert log.failure is None


def test_the_event_says_what_was_gained(disk: MemoryDisk) -> None:
    seen: list[events.Event] = []
    log = Log.open(disk, DIRECTORY, LogConfig(segment_bytes=600, cleanup="compact"), observe=seen.append)  # type: ignore[arg-type]
    for step in range(100):
        put(log, "k", str(step))

    compact(log)

    (compacted,) = [event for event in seen if isinstance(event, events.Compacted)]
    assert compacted.bytes_after < compacted.bytes_before
    assert compacted.segments_after < compacted.segments_before


def fill_and_compact(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED)
    rng = Random(7)
    for step in range(60):
        put(log, f"k{rng.randrange(12)}", None if rng.random() < 0.1 else str(step))
    log.flush()
    compact(log, now_ns=NOW_NS + 48 * HOUR_NS)
    for step in range(60):
        put(log, f"k{rng.randrange(12)}", str(step), now_ns=NOW_NS + 48 * HOUR_NS)
    log.flush()
    compact(log, now_ns=NOW_NS + 96 * HOUR_NS)


def durable_table(disk: MemoryDisk, power_off_after: int) -> None:
    """Run until the power goes off."""
    disk.power_off_after = power_off_after
    try:
        fill_and_compact(disk)
    except PowerLoss:
        pass


def test_a_compaction_survives_a_crash_at_any_step() -> None:
    whole = MemoryDisk()
    fill_and_compact(whole)
    rng = Random(7)
    log_of_writes: list[tuple[bytes, bytes | None]] = []
    for half in range(2):
        for step in range(60):
            key = f"k{rng.randrange(12)}".encode()
            deleted = half == 0 and rng.random() < 0.1
            log_of_writes.append((key, None if deleted else str(step).encode()))

    for power_off_after in range(0, whole.steps, 5):
        disk = MemoryDisk()
        durable_table(disk, power_off_after)

        for keep in ("nothing", "everything", "random"):
            survived = disk.crash(seed=power_off_after, keep=keep)  # type: ignore[arg-type]
            log = open_log(survived, **COMPACTED)  # type: ignore[arg-type]

            expected: dict[bytes, bytes] = {}
            for key, value in log_of_writes[: log.next_offset]:
                if value is None:
                    expected.pop(key, None)
                else:
                    expected[key] = value
            assert table_of(log) == expected, f"power off after {power_off_after}, {keep}"
            assert not log.damage
            assert not [path for path in survived.paths() if path.endswith((".cleaned", ".deleted"))]


def ready_to_swap(disk: MemoryDisk) -> tuple[Log, SwapJob]:
    """A log of six values of one key whose compaction has made its copies, and is about to decide."""
    log = open_log(disk, segment_bytes=100, cleanup="compact")
    for step in range(6):
        put(log, "k", f"{step}" * 40)
    log.flush()
    job = log.begin_compaction(now_ns=NOW_NS)
    assert job is not None
    job.run()
    swap = log.complete(job)
    assert isinstance(swap, SwapJob)
    return log, swap


@pytest.mark.parametrize("late", [False, True], ids=["decided", "deciding later"])
@pytest.mark.parametrize("ending", ["crash", "close"])
def test_a_swap_is_not_carried_out_on_a_log_that_was_cut(disk: MemoryDisk, late: bool, ending: str) -> None:
    log, swap = ready_to_swap(disk)
    if not late:
        swap.run()

    log.truncate(1)
    if late:
        swap.run()
    if ending == "close":
        log.close()

    log = open_log(disk.crash(keep="nothing"), segment_bytes=100, cleanup="compact")
    assert [message.value for message in read_all(log)[0]] == [b"0" * 40]
    assert not log.damage


def test_a_log_cut_behind_what_is_compacted_is_compacted_all_the_same(disk: MemoryDisk) -> None:
    log, swap = ready_to_swap(disk)
    put(log, "other", "x" * 40)
    swap.run()

    log.truncate(6)

    finish = log.complete(swap)
    assert finish is not None
    finish.run()
    log.complete(finish)
    assert [message.offset for message in read_all(log)[0]] == [4, 5]


def test_a_log_closed_during_a_compaction_is_whole_and_compacts_later(disk: MemoryDisk) -> None:
    log, swap = ready_to_swap(disk)
    log.close()
    swap.run()

    log = open_log(disk, segment_bytes=100, cleanup="compact")

    assert len(read_all(log)[0]) == 6
    compact(log)
    assert len(read_all(log)[0]) == 2


def test_what_was_compacted_cannot_be_cut(disk: MemoryDisk) -> None:
    log = open_log(disk, segment_bytes=1, cleanup="compact")
    for step in range(4):
        put(log, "k", str(step))
    compact(log)

    with pytest.raises(Conflict, match="is compacted up to offset 3 and cannot be truncated at offset 2"):
        log.truncate(2)

    assert table_of(log) == {b"k": b"3"}


def test_a_copy_that_is_not_the_one_that_was_noted_replaces_nothing(disk: MemoryDisk) -> None:
    log, swap = ready_to_swap(disk)
    swap.run()
    disk = disk.crash(keep="nothing")
    for path in disk.paths():
        if path.endswith(".cleaned"):
            disk.remove(path)

    log = open_log(disk, segment_bytes=100, cleanup="compact")

    assert len(read_all(log)[0]) == 6


def test_damage_that_keeps_a_log_from_being_compacted_is_reported(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED)
    for step in range(100):
        put(log, f"k{step % 5}", str(step))
    log.flush()
    disk.flip_bit(f"{DIRECTORY}/{0:020d}.log", 100, 3)

    compact(log)

    assert [(damage.first_offset, damage.next_offset) for damage in log.damage] == [(2, 3)]


def test_a_tombstone_may_be_kept_for_centuries(disk: MemoryDisk) -> None:
    log = open_log(disk, **COMPACTED, tombstone_retention_ms=9 * 10**12)
    put(log, "gone", None)
    for step in range(40):
        put(log, "k", str(step))

    compact(log)

    assert [message.tombstone for message in read_all(log)[0] if message.key == b"gone"] == [True]
    assert len(read_all(log)[0]) < 20


def test_a_clock_that_was_in_the_future_does_not_put_compaction_off_until_then() -> None:
    disk = FaultyDisk(MemoryDisk(), seed=1)
    log = open_log(disk, **COMPACTED)
    for step in range(100):
        put(log, f"k{step % 5}", str(step))
    log.flush()
    disk.fail_next("append", ENOSPC, path_suffix=".cleaned")
    compact(log, now_ns=NOW_NS + 1_000_000 * HOUR_NS)
    assert len(read_all(log)[0]) == 100

    compact(log)

    assert len(read_all(log)[0]) < 50


@pytest.mark.parametrize("steps_done", [0, 1, 2])
def test_no_step_of_a_compaction_touches_the_disk_once_its_log_is_abandoned(disk: MemoryDisk, steps_done: int) -> None:
    log = open_log(disk, **COMPACTED)
    for round in range(20):
        for key in "abc":
            put(log, key, f"{key}{round}")
    log.flush()
    job: Job | None = log.begin_compaction(now_ns=NOW_NS)
    for _ in range(steps_done):
        assert job
        job.run()
        job = log.complete(job)
    assert job

    log.abandon()
    steps = disk.steps
    job.run()

    assert log.complete(job) is None
    assert disk.steps == steps
    assert table_of(open_log(disk, **COMPACTED)) == {b"a": b"a19", b"b": b"b19", b"c": b"c19"}
