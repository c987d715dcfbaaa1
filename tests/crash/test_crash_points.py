"""The power goes off at every byte of a mixed workload, and whatever may survive a crash survives it."""

from collections.abc import Callable
from random import Random

import pytest

from goqueue.errors import GoQueueError
from goqueue.record import kernel
from goqueue.storage.config import LogConfig
from goqueue.storage.log import Log
from goqueue.testing import MemoryDisk, PowerLoss
from tests.storage.logs import DIRECTORY, NOW_NS, read_all

Survival = Callable[[MemoryDisk, int], MemoryDisk]
SURVIVALS: dict[str, Survival] = {
    "nothing unsynced": lambda disk, _: disk.crash(keep="nothing"),
    "everything": lambda disk, _: disk.crash(keep="everything"),
    "torn at random": lambda disk, seed: disk.crash(seed=seed, keep="random"),
}
CONFIG = LogConfig(segment_bytes=400, retention_bytes=1_500)
SECOND_NS = 1_000_000_000


class Writer:
    """A workload, and what was promised to it: each value it appended, and how far the log called itself durable."""

    def __init__(self, disk: MemoryDisk, config: LogConfig) -> None:
        self._disk = disk
        self._config = config
        self._steps = 0
        self.values: list[bytes] = []
        self.durable_offset = 0

    def run(self, actions: list[str], rng: Random) -> None:
        self._log = Log.open(self._disk, DIRECTORY, self._config)
        for action in actions:
            self._steps += 1
            getattr(self, action)(rng)
        self._log.close()
        self.durable_offset = len(self.values)

    def append(self, rng: Random) -> None:
        batch = [rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(1, 4))]
        self.values += batch
        self._log.append(kernel.encode(batch), now_ns=NOW_NS + self._steps)

    def flush(self, rng: Random) -> None:
        self._log.flush()
        self.durable_offset = self._log.durable_offset

    def flush_while_appending(self, rng: Random) -> None:
        job = self._log.begin_flush(monotonic_ns=self._steps * SECOND_NS)
        self.append(rng)
        if job:
            job.run()
            self._log.complete(job)
            self.durable_offset = self._log.durable_offset

    def truncate(self, rng: Random) -> None:
        end = rng.randrange(self._log.start_offset, self._log.next_offset + 1)
        self.durable_offset = min(self.durable_offset, end)
        self._log.truncate(end)
        del self.values[end:]
        self.durable_offset = self._log.durable_offset

    def truncate_while_flushing(self, rng: Random) -> None:
        job = self._log.begin_flush(monotonic_ns=self._steps * SECOND_NS)
        self.truncate(rng)
        if job:
            job.run()
            self._log.complete(job)
            self.durable_offset = self._log.durable_offset

    def reopen(self, rng: Random) -> None:
        self._log.close()
        self.durable_offset = self._log.next_offset
        self._log = Log.open(self._disk, DIRECTORY, self._config)

    def maintain(self, rng: Random) -> None:
        self._log.maintain(now_ns=NOW_NS + self._steps, monotonic_ns=self._steps * SECOND_NS)
        self.durable_offset = max(self.durable_offset, self._log.durable_offset)


ACTIONS = {
    "append": 12,
    "flush": 3,
    "flush_while_appending": 3,
    "truncate": 1,
    "truncate_while_flushing": 1,
    "reopen": 1,
    "maintain": 1,
}
# fmt: off
SMALL_WORKLOAD = [
    "append", "flush", "append", "append", "flush_while_appending", "append", "append", "maintain", "append",
    "truncate", "append", "flush", "append", "flush_while_appending", "truncate_while_flushing", "append", "reopen",
    "append", "append", "append", "maintain", "append",
]
# fmt: on


def run_until(
    power_off_after: int | None, actions: list[str], config: LogConfig, seed: int
) -> tuple[MemoryDisk, Writer]:
    disk = MemoryDisk(power_off_after=power_off_after)
    writer = Writer(disk, config)
    try:
        writer.run(actions, Random(seed))
    except PowerLoss:
        pass
    return disk, writer


def check_recovered(disk: MemoryDisk, writer: Writer, config: LogConfig) -> None:
    """All that was durable is there, all that is there was appended, and the indexes find every record of it."""
    log = Log.open(disk, DIRECTORY, config)
    messages, gaps = read_all(log)

    assert not gaps
    assert not log.damage
    assert [message.offset for message in messages] == list(range(log.start_offset, log.next_offset))
    assert log.next_offset >= writer.durable_offset
    assert log.durable_offset == log.next_offset
    for message in messages:
        assert message.value == writer.values[message.offset]
        assert log.read(message.offset, max_bytes=1).next_offset == message.offset + 1
        assert log.offset_at_time(message.timestamp_ns) <= message.offset < log.offset_at_time(message.timestamp_ns + 1)
    first = log.append(kernel.encode([b"after"]), now_ns=NOW_NS).first_offset
    log.flush()
    assert log.read(first).record_count == 1


def check_crash(power_off_after: int, actions: list[str], config: LogConfig, seed: int = 0) -> None:
    disk, writer = run_until(power_off_after, actions, config, seed)
    for name, survival in SURVIVALS.items():
        try:
            check_recovered(survival(disk, power_off_after), writer, config)
        except (AssertionError, GoQueueError) as error:
            raise AssertionError(f"seed {seed}, power off after {power_off_after}, {name}: {error}") from error


@pytest.mark.parametrize("part", range(3))
def test_the_log_survives_a_crash_at_every_byte_of_a_small_workload(part: int) -> None:
    steps = run_until(None, SMALL_WORKLOAD, CONFIG, 0)[0].steps
    assert steps > 2_000

    for power_off_after in range(part, steps, 3):
        check_crash(power_off_after, SMALL_WORKLOAD, CONFIG)


@pytest.mark.parametrize("flush", ["group", "interval", "none"])
def test_the_log_survives_crashes_anywhere_in_large_workloads(flush: str) -> None:
    config = LogConfig(segment_bytes=3_000, retention_bytes=50_000, flush=flush)  # type: ignore[arg-type]
    for seed in range(40):
        rng = Random(seed)
        actions = rng.choices(list(ACTIONS), list(ACTIONS.values()), k=150)
        steps = run_until(None, actions, config, seed)[0].steps
        check_crash(rng.randrange(steps), actions, config, seed)


def test_the_log_survives_a_crash_during_recovery_from_a_crash() -> None:
    for power_off_after in range(0, run_until(None, SMALL_WORKLOAD, CONFIG, 0)[0].steps, 97):
        disk, writer = run_until(power_off_after, SMALL_WORKLOAD, CONFIG, 0)
        survived = disk.crash(seed=power_off_after, keep="random")
        before = survived.steps
        for second in range(before, before + 60, 7):
            again = disk.crash(seed=power_off_after, keep="random")
            again.power_off_after = second
            try:
                Log.open(again, DIRECTORY, CONFIG)
            except PowerLoss:
                check_recovered(again.crash(seed=second, keep="random"), writer, CONFIG)
