"""A writing process is killed, fifty times in a row, and each time the next one finds all that was acknowledged."""

import signal
import subprocess
import sys
from pathlib import Path
from random import Random

from goqueue.events import Event, TailTruncated
from goqueue.record import kernel
from goqueue.storage.checkpoint import CheckpointFile
from goqueue.storage.directory import DataDirectory
from goqueue.storage.file import OsDisk
from goqueue.storage.log import Log
from tests.crash import writer

ROUNDS = 50
ACKS_MAX = 60


def run_and_kill(data: str, seed: int, ack_count: int) -> int:
    """Let a writer run until it has acknowledged that often, kill it, and return the highest offset it vouched for."""
    command = [sys.executable, writer.__file__, data, str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        acks = process.stdout.read(ack_count * writer.ACK_BYTES)
        process.send_signal(signal.SIGKILL)
        acks += process.stdout.read()  # those that were on their way
    assert process.returncode == -signal.SIGKILL, acks
    whole = acks[: len(acks) // writer.ACK_BYTES * writer.ACK_BYTES]
    return int.from_bytes(whole[-writer.ACK_BYTES :], "big")


def tear(directory: str, rng: Random) -> None:
    """Do to what stands behind the durable checkpoint what a power cut could have done to it."""
    checkpoint = CheckpointFile(OsDisk(), f"{directory}/checkpoint").load()
    assert checkpoint
    for path in sorted(Path(directory).glob("*.log")):
        base = int(path.stem)
        if base < checkpoint.base_offset:
            continue
        durable = checkpoint.position if base == checkpoint.base_offset else 0
        tear_file(path, durable, rng)
    for path in Path(directory).glob(f"{checkpoint.base_offset:020d}.*index"):
        tear_file(path, 0, rng)


def tear_file(path: Path, durable: int, rng: Random) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        match rng.choice(("leave", "cut", "cut", "overwrite", "zeros", "garbage")):
            case "cut":
                file.truncate(rng.randint(durable, size))
            case "overwrite" if size > durable:
                file.seek(rng.randrange(durable, size))
                file.write(rng.randbytes(rng.randrange(1, 50))[: size - file.tell()])
            case "zeros":
                file.truncate(size + rng.randrange(1, 5_000))
            case "garbage":
                file.seek(size)
                file.write(rng.randbytes(rng.randrange(1, 5_000)))


def check_records(log: Log, offset: int) -> None:
    """From the offset to the end, every record is there and holds what it should."""
    reader = log.reader(offset)
    while reader.offset < log.next_offset:
        first = reader.offset
        chunk = reader.read(max_bytes=1 << 20)
        columns = kernel.columns(chunk.records, "offset", "value")
        assert not chunk.gaps
        assert memoryview(columns.offsets).cast("q").tolist() == list(range(first, chunk.next_offset))
        assert columns.value_data == b"".join(map(writer.value_at, range(first, chunk.next_offset)))


def test_no_acknowledged_record_is_lost_when_the_writer_is_killed_fifty_times(tmp_path: Path) -> None:
    data = f"{tmp_path}/data"
    rng = Random(7)
    seen: list[Event] = []
    checked = 0
    for number in range(ROUNDS):
        acked = run_and_kill(data, number, rng.randrange(1, ACKS_MAX))
        if number % 2:
            tear(f"{data}/topics/{writer.TOPIC}/0/log", rng)

        directory = DataDirectory.open(OsDisk(), data)
        log = directory.open_log(writer.TOPIC, 0, writer.CONFIG, observe=seen.append)

        assert log.next_offset >= acked > checked, number
        assert log.durable_offset == log.next_offset
        assert not log.damage
        check_records(log, 0 if number == ROUNDS - 1 else checked)
        checked = acked
        if number % 3:
            log.close()
        directory.close()

    assert log.segment_count > ROUNDS
    assert any(isinstance(event, TailTruncated) for event in seen)
