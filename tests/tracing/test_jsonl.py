"""Traces in files: a line per row, a new file when one is large or the day is over, and only so many of them."""

import json
from errno import EIO, ENOSPC

import pytest

from goqueue.names import TopicPartition
from goqueue.testing import FaultyDisk, ManualClock, MemoryDisk
from goqueue.tracing.export import Export
from goqueue.tracing.jsonl import JsonlExporter
from goqueue.tracing.rows import EventRow, EventType
from goqueue.tracing.stream import StreamExporter

PATH = "/logs/traces.jsonl"
DAY_S = 24 * 3_600


def export(clock: ManualClock, offset: int = 0) -> Export:
    row = EventRow(offset, EventType.ACKED, clock.wall_ns(), TopicPartition("orders", 0), offset, offset + 1, None, 1)
    return Export(row, {}, {})


def names(disk: MemoryDisk) -> list[str]:
    return sorted(entry.name for entry in disk.entries("/logs"))


def content(disk: MemoryDisk, name: str = "traces.jsonl") -> bytes:
    file = disk.open(f"/logs/{name}")
    return file.pread(0, file.size())


def offsets(disk: MemoryDisk, name: str = "traces.jsonl") -> list[int]:
    return [json.loads(line)["first_offset"] for line in content(disk, name).splitlines()]


def test_rows_are_lines_in_their_order(disk: MemoryDisk, clock: ManualClock) -> None:
    exporter = JsonlExporter(disk, PATH, clock=clock)

    exporter.export([export(clock, 1), export(clock, 2)])
    exporter.export([export(clock, 3)])

    assert offsets(disk) == [1, 2, 3]
    assert content(disk).endswith(b"}\n")
    assert names(disk) == ["traces.jsonl"]


def test_a_file_that_is_full_is_put_aside_and_no_line_is_cut(disk: MemoryDisk, clock: ManualClock) -> None:
    exporter = JsonlExporter(disk, PATH, clock=clock, max_bytes=2_000, keep=100)
    exporter.export([export(clock, offset) for offset in range(20)])
    exporter.export([export(clock, offset) for offset in range(20, 30)])

    old = names(disk)[:-1]
    assert old[:2] == ["traces-20240101-0001.jsonl", "traces-20240101-0002.jsonl"]
    assert [offset for name in names(disk) for offset in offsets(disk, name)] == list(range(30))
    assert all(len(content(disk, name)) <= 2_000 for name in names(disk))


def test_the_day_ends_the_file(disk: MemoryDisk, clock: ManualClock) -> None:
    exporter = JsonlExporter(disk, PATH, clock=clock)
    exporter.export([export(clock, 1)])
    clock.advance(DAY_S)
    exporter.export([export(clock, 2)])
    clock.advance(2 * DAY_S)
    exporter.export([export(clock, 3)])

    assert names(disk) == ["traces-20240101-0001.jsonl", "traces-20240102-0001.jsonl", "traces.jsonl"]
    assert offsets(disk) == [3]


def test_the_day_ends_the_file_also_of_a_process_that_is_gone(disk: MemoryDisk, clock: ManualClock) -> None:
    JsonlExporter(disk, PATH, clock=clock).export([export(clock, 1)])
    clock.advance(DAY_S)

    JsonlExporter(disk, PATH, clock=clock).export([export(clock, 2)])

    assert names(disk) == ["traces-20240101-0001.jsonl", "traces.jsonl"]
    assert (offsets(disk, "traces-20240101-0001.jsonl"), offsets(disk)) == ([1], [2])


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_only_so_many_old_files_are_kept(disk: MemoryDisk, clock: ManualClock, keep: int) -> None:
    exporter = JsonlExporter(disk, PATH, clock=clock, max_bytes=500, keep=keep)
    disk.make_directory("/logs")
    disk.open("/logs/traces-yesterday.jsonl", create=True)
    exporter.export([export(clock, offset) for offset in range(10)])

    assert "traces-yesterday.jsonl" in names(disk)
    kept = [name for name in names(disk) if name.startswith("traces-2024")]
    assert len(kept) == keep
    assert kept == [f"traces-20240101-{number:04d}.jsonl" for number in range(10 - keep, 10)]


def test_a_process_goes_on_with_the_file_and_the_numbers_of_the_last_one(disk: MemoryDisk, clock: ManualClock) -> None:
    JsonlExporter(disk, PATH, clock=clock, max_bytes=500).export([export(clock, offset) for offset in range(3)])
    JsonlExporter(disk, PATH, clock=clock, max_bytes=500).export([export(clock, offset) for offset in range(3, 6)])

    assert [offset for name in names(disk) for offset in offsets(disk, name)] == list(range(6))


def test_a_line_that_a_crash_cut_off_spoils_only_itself(disk: MemoryDisk, clock: ManualClock) -> None:
    JsonlExporter(disk, PATH, clock=clock).export([export(clock, 1)])
    disk.open(PATH).append(b'{"event_type":"consu')

    JsonlExporter(disk, PATH, clock=clock).export([export(clock, 2)])

    lines = content(disk).splitlines()
    assert lines[1] == b'{"event_type":"consu'
    assert [json.loads(line)["first_offset"] for line in (lines[0], lines[2])] == [1, 2]


@pytest.mark.parametrize("error", [EIO, ENOSPC])
@pytest.mark.parametrize("operation", ["append", "open", "rename"])
def test_a_disk_that_fails_is_told_and_tried_again(
    disk: MemoryDisk, clock: ManualClock, operation: str, error: int
) -> None:
    faulty = FaultyDisk(disk, seed=1)
    exporter = JsonlExporter(faulty, PATH, clock=clock, max_bytes=500)
    exporter.export([export(clock, 1)])
    faulty.fail_next(operation, error)  # type: ignore[arg-type]

    with pytest.raises(OSError, match="traces"):
        exporter.export([export(clock, 2), export(clock, 3)])

    exporter.export([export(clock, 4)])
    found = [offset for name in names(disk) for offset in offsets(disk, name)]
    assert (found[0], found[-1]) == (1, 4)


def test_a_directory_that_is_missing_is_made(disk: MemoryDisk, clock: ManualClock) -> None:
    JsonlExporter(disk, "/var/log/deep/traces.jsonl", clock=clock).export([export(clock, 1)])

    assert [entry.name for entry in disk.entries("/var/log/deep")] == ["traces.jsonl"]


def test_closing_twice_is_fine_and_so_is_going_on(disk: MemoryDisk, clock: ManualClock) -> None:
    exporter = JsonlExporter(disk, PATH, clock=clock)
    exporter.export([export(clock, 1)])
    exporter.close()
    exporter.close()
    exporter.export([export(clock, 2)])

    assert offsets(disk) == [1, 2]


def test_a_stream_gets_all_lines_in_one_piece(clock: ManualClock) -> None:
    written: list[bytes] = []
    exporter = StreamExporter("stdout", written.append)

    exporter.export([export(clock, 1), export(clock, 2)])
    exporter.close()

    (piece,) = written
    assert [json.loads(line)["first_offset"] for line in piece.splitlines()] == [1, 2]
    assert exporter.name == "stdout"
