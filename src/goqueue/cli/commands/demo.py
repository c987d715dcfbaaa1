"""`goqueue demo`: what the storage engine promises, shown on a real directory in a few seconds.

A process writes orders until it is killed with SIGKILL; the log is recovered, read back, searched by time,
damaged on purpose, compacted. Every number that is shown was counted in this run.
"""

import itertools
import json
import multiprocessing
import tempfile
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path

from rich.panel import Panel

from goqueue.cli.output import console, say, size
from goqueue.clock import SECOND, SystemClock
from goqueue.events import Compacted, Event, TailTruncated
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.message import Message
from goqueue.storage.config import Cleanup, Flush, LogConfig
from goqueue.storage.directory import DataDirectory
from goqueue.storage.file import OsDisk
from goqueue.storage.log import Log
from goqueue.storage.walk import Damage

ORDERS = TopicPartition("orders", 0)
BATCH = 500
ACKS_BEFORE_THE_KILL = 150
CONFIG = LogConfig(segment_bytes=4 * 1024 * 1024, flush=Flush.GROUP)


def demo() -> None:
    """Write, crash, recover, read, seek by time, survive damage, compact: on a log in a temporary directory."""
    console.print(Panel(f"GoQueue demo: the storage engine, with the {kernel.IMPLEMENTATION} record kernel"))
    with tempfile.TemporaryDirectory(prefix="goqueue-demo-") as directory:
        _say(f"data directory {directory}, removed at the end")
        acked = _write_until_killed(directory)
        data = DataDirectory.open(OsDisk(), directory)
        log = _recover(data, acked)
        timestamps = _read_back(log, acked)
        _seek_by_time(log, timestamps)
        _damage(log, directory)
        log.close()
        _compact(data)
        data.close()
    console.print(Panel("[green]all of it held[/]"))


def _write_until_killed(directory: str) -> int:
    _step("write, and kill -9 the writer in the middle of it")
    ours, theirs = multiprocessing.Pipe(duplex=False)
    writer = multiprocessing.get_context("spawn").Process(target=write_orders, args=(directory, theirs))
    writer.start()
    theirs.close()
    for _ in range(ACKS_BEFORE_THE_KILL):
        acked: int = ours.recv()
    writer.kill()
    writer.join()
    while ours.poll():
        try:
            acked = ours.recv()
        except EOFError:
            break
    _say(f"process {writer.pid} appended batches of {BATCH}, each acknowledged after fdatasync")
    _say(f"killed; {acked:,} orders had been acknowledged by then")
    return acked


def write_orders(directory: str, acks: Connection) -> None:
    """Append orders for ever, and send the durable offset after each flush. Runs in a process of its own."""
    clock = SystemClock()
    log = DataDirectory.open(OsDisk(), directory).open_log(ORDERS.topic, ORDERS.partition, CONFIG)
    for first in itertools.count(0, BATCH):
        log.append(_orders(first, BATCH), now_ns=clock.wall_ns())
        log.flush()
        acks.send(log.durable_offset)


def _orders(first: int, count: int) -> bytearray:
    numbers = range(first, first + count)
    return kernel.encode([_order(number) for number in numbers], keys=[b"customer-%d" % (n % 97) for n in numbers])


def _order(number: int) -> bytes:
    return json.dumps({"id": number, "customer": number % 97, "total": number * 7 % 1000}).encode()


def _recover(data: DataDirectory, acked: int) -> Log:
    _step("tear the tail, as a power cut would, and recover")
    directory = Path(data.path, "topics", ORDERS.topic, str(ORDERS.partition), "log")
    active = max(directory.glob("*.log"))
    with active.open("ab") as file:
        file.write(bytes(_orders(0, 1))[:-5])
    _say(f"half a record appended to {active.name}")
    clock, seen = SystemClock(), list[Event]()
    started = clock.monotonic_ns()
    log = data.open_log(ORDERS.topic, ORDERS.partition, CONFIG, observe=seen.append)
    elapsed_ms = (clock.monotonic_ns() - started) / 1e6
    torn = sum(event.bytes for event in seen if isinstance(event, TailTruncated))
    _say(
        f"opened in {elapsed_ms:.1f} ms: {log.segment_count} segments, {size(log.size)}, torn tail of {torn} bytes cut"
    )
    _say(f"{log.next_offset:,} orders are there, {log.next_offset - acked:,} of them not yet acknowledged")
    assert log.next_offset >= acked, "an acknowledged order is lost"
    return log


def _read_back(log: Log, acked: int) -> list[int]:
    _step("read everything back and compare")
    clock = SystemClock()
    started, count, timestamps = clock.monotonic_ns(), 0, list[int]()
    reader = log.reader(0)
    while (chunk := reader.read(max_bytes=1024 * 1024)).record_count:
        for message in kernel.decode(chunk.records, ORDERS, Message, verify=False):
            assert message.offset == count
            assert message.value == _order(count), "a wrong byte"
            count += 1
        timestamps.append(message.timestamp_ns)
    seconds = (clock.monotonic_ns() - started) / 1e9
    assert count == log.next_offset >= acked
    _say(f"{count:,} orders read, decoded and compared one by one in {seconds:.2f} s, none missing, none wrong")
    return timestamps


def _seek_by_time(log: Log, timestamps: list[int]) -> None:
    _step("seek by time")
    wanted = timestamps[len(timestamps) // 2]
    clock = SystemClock()
    started = clock.monotonic_ns()
    offset = log.offset_at_time(wanted)
    elapsed_us = (clock.monotonic_ns() - started) / 1e3
    (found,) = kernel.decode(log.read(offset, max_bytes=1).records, ORDERS, Message)
    _say(f"first order stored at or after {datetime.fromtimestamp(wanted / SECOND, UTC):%H:%M:%S.%f} UTC?")
    _say(f"offset {offset:,}, found in {elapsed_us:.0f} us: {found.text()}")
    assert found.timestamp_ns >= wanted


def _damage(log: Log, directory: str) -> None:
    _step("flip one bit on the disk, and read again")
    path = Path(directory, "topics", ORDERS.topic, str(ORDERS.partition), "log", f"{0:020d}.log")
    position = path.stat().st_size // 2
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))
    reader, count, gaps = log.reader(0), 0, list[Damage]()
    while (chunk := reader.read(max_bytes=1024 * 1024)).record_count:
        count += chunk.record_count
        gaps += chunk.gaps
    (gap,) = gaps
    _say(f"bit 4 of byte {position:,} of {path.name} flipped")
    _say(f"{count:,} orders read; reported as lost: offset {gap.first_offset:,} (checksum mismatch), and nothing else")
    assert (count, gap.next_offset - gap.first_offset) == (log.next_offset - 1, 1)


def _compact(data: DataDirectory) -> None:
    _step("compact a changelog to the last value of each key")
    clock, seen = SystemClock(), list[Event]()
    config = LogConfig(segment_bytes=256 * 1024, cleanup=Cleanup.COMPACT)
    log = data.open_log("customers", 0, config, observe=seen.append)
    for first in range(0, 50_000, BATCH):
        log.append(_orders(first, BATCH), now_ns=clock.wall_ns())
    log.flush()
    log.maintain(now_ns=clock.wall_ns(), monotonic_ns=clock.monotonic_ns())
    (compacted,) = (event for event in seen if isinstance(event, Compacted))
    _say(f"50,000 updates of 97 customers: sealed segments went from {size(compacted.bytes_before)}")
    _say(f"to {size(compacted.bytes_after)}, {compacted.segments_before} segments to {compacted.segments_after}")
    log.close()


def _step(title: str) -> None:
    console.print(f"\n[bold]{title}[/]")


def _say(text: str) -> None:
    say(f"  {text}")
