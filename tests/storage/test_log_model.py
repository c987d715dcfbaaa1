"""A log on a disk that fails at random: no wrong byte is read, and nothing that was acked is lost."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import NamedTuple

import pytest

from goqueue.errors import GoQueueError, ReadFailed, StorageFailed, StorageFull
from goqueue.record import kernel
from goqueue.record.message import StoredMessage
from goqueue.storage.config import Cleanup, LogConfig
from goqueue.storage.log import Log
from goqueue.testing import FaultyDisk, MemoryDisk
from goqueue.testing.inode import Keep
from tests.storage.faulty import chunks, lost_offsets
from tests.storage.logs import DIRECTORY, NOW_NS, ORIGIN, append, read_all

KINDS = ("short_write", "write_error", "no_space", "sync_error", "read_error", "bit_flip", "name_error")


STEPS = {"append": 12, "flush": 3, "flush_group": 4, "read": 6, "seek": 2, "truncate": 1, "maintain": 2, "restart": 1}


class Entry(NamedTuple):
    """A record, as far as the soup is concerned."""

    key: bytes
    value: bytes


class Soup:
    """A workload on a disk that fails in every way, and what was promised to it.

    `entries` is what was appended, `attempted` all that was ever handed to the log under an offset: a batch whose
    append failed may still be there after a restart, but nothing else may. Below `acked` all must be as it was.
    """

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._rates = {kind: self._rng.choice((0.0, 0.002, 0.02)) for kind in KINDS}
        self._config = LogConfig(
            segment_bytes=1_500,
            cleanup=self._rng.choice((Cleanup.DELETE, Cleanup.COMPACT)),
            retention_bytes=self._rng.choice((0, 20_000)),
        )
        self._disk = MemoryDisk()
        self._faulty = FaultyDisk(self._disk, seed=seed)
        self._now_ns = NOW_NS
        self.attempted: dict[int, set[Entry]] = {}
        self.entries: list[Entry] = []
        self.acked = 0
        self._log = self._open()

    def run(self, steps: int) -> None:
        for step in self._rng.choices(list(STEPS), list(STEPS.values()), k=steps):
            self._now_ns += 1_000_000
            try:
                getattr(self, f"_{step}")()
            except (StorageFull, ReadFailed):
                pass  # nothing happened
            except StorageFailed as failure:
                assert failure is self._log.failure
            if self._log.failure:
                with self._without(*KINDS):
                    self._check_read(self._log.start_offset)
                self._restart()
        self._rates = dict.fromkeys(KINDS, 0.0)
        self._cut_power(keep="nothing")
        self._check_recovered()

    def _append(self) -> None:
        batch = [
            Entry(b"%d" % self._rng.randrange(20), self._rng.randbytes(self._rng.randrange(200)))
            for _ in range(self._rng.randrange(1, 6))
        ]
        for offset, entry in enumerate(batch, start=self._log.next_offset):
            self.attempted.setdefault(offset, set()).add(entry)
        keys, values = zip(*batch, strict=True)
        append(self._log, values, keys=list(keys), now_ns=self._now_ns)
        self.entries += batch

    def _flush(self) -> None:
        self._log.flush()
        self.acked = self._log.durable_offset
        assert self.acked == self._log.next_offset

    def _flush_group(self) -> None:
        job = self._log.begin_flush(monotonic_ns=self._now_ns)
        try:
            self._append()
        finally:
            if job:
                error = None
                try:
                    job.run()
                except OSError as raised:
                    error = raised
                self._log.complete(job, error)
                self.acked = self._log.durable_offset

    def _read(self) -> None:
        self._check_read(self._rng.randint(self._log.start_offset, self._log.next_offset))

    def _seek(self) -> None:
        offset = self._log.offset_at_time(self._now_ns - self._rng.randrange(100) * 1_000_000)
        assert self._log.start_offset <= offset <= self._log.next_offset

    def _truncate(self) -> None:
        if self._config.compacts:
            return  # whoever compacts no further than he truncates, as a replica does, loses no key by it
        end = self._rng.randint(max(self._log.start_offset, self._log.next_offset - 20), self._log.next_offset)
        self.acked = min(self.acked, end)
        try:
            self._log.truncate(end)
        except StorageFull:  # it is cut all the same, and takes no appends before that is durable
            with self._without(*KINDS):
                self._log.truncate(end)
        del self.entries[end:]
        self.acked = self._log.durable_offset

    def _maintain(self) -> None:
        try:
            self._log.maintain(now_ns=self._now_ns, monotonic_ns=self._now_ns)
        finally:
            self.acked = self._log.durable_offset

    def _restart(self) -> None:
        """End the process, decently or not, or the machine; then start again, with a disk as bad as before."""
        match self._rng.choice(("close", "kill", "power cut")):
            case "close":
                with suppress(StorageFailed):
                    self._log.close()
            case "power cut":
                self._cut_power(keep="random")
        self._check_recovered()

    def _cut_power(self, *, keep: Keep) -> None:
        self._disk = self._disk.crash(keep=keep, seed=self._rng.getrandbits(32))
        self._faulty = FaultyDisk(self._disk, seed=self._rng.getrandbits(32))

    def _open(self) -> Log:
        """Try with the disk as it is, but not for ever."""
        self._faulty.rates.update(self._rates)
        for _ in range(5):
            with suppress(GoQueueError):
                return Log.open(self._faulty, DIRECTORY, self._config)
        with self._without(*KINDS):
            return Log.open(self._faulty, DIRECTORY, self._config)

    def _check_recovered(self) -> None:
        """All that was acked is there, all that is there was handed to the log, and nothing is called damaged."""
        faults_before = len(self._faulty.injected)
        self._log = self._open()
        flipped = {fault.path for fault in self._faulty.injected[faults_before:] if fault.kind == "bit_flip"}
        with self._without(*KINDS):
            messages, gaps = read_all(self._log)
        found = {message.offset: Entry(message.key or b"", message.value) for message in messages}
        # A log that could not read how far it was compacted takes the holes for losses; nothing else is called one.
        assert not gaps or f"{DIRECTORY}/compaction" in flipped
        assert not self._log.damage or flipped
        assert self._log.next_offset >= self.acked
        for offset, entry in found.items():
            assert entry in self.attempted[offset]
            assert offset >= self.acked or entry == self.entries[offset]
        for offset in range(self._log.start_offset, self._log.next_offset):
            assert offset in found or self._was_replaced(offset, found), offset
            if offset >= self.acked and offset in found:
                self.entries[offset:] = [found[offset]]
        del self.entries[self._log.next_offset :]
        self.acked = self._log.durable_offset

    def _was_replaced(self, offset: int, found: dict[int, Entry]) -> bool:
        """Whether compaction could take the record away, because a later one bears its key."""
        key = self.entries[offset].key
        return self._config.compacts and any(later > offset and entry.key == key for later, entry in found.items())

    def _check_read(self, offset: int) -> None:
        """What is read from the offset on is what was appended; what is missing is told, or was compacted away."""
        max_bytes = self._rng.choice((1, 300, 5_000))
        for first, chunk in chunks(self._log, offset, max_bytes=max_bytes):
            messages = kernel.decode(chunk.records, ORIGIN, StoredMessage)
            found = [message.offset for message in messages]
            if not self._config.compacts:
                assert sorted(found + lost_offsets(chunk)) == list(range(first, chunk.next_offset))
            for message in messages:
                assert (message.key, message.value) == self.entries[message.offset]

    @contextmanager
    def _without(self, *kinds: str) -> Iterator[None]:
        """No faults of these kinds; all others as often as the seed has it."""
        self._faulty.rates.update(self._rates | dict.fromkeys(kinds, 0.0))
        try:
            yield
        finally:
            self._faulty.rates.update(self._rates)


@pytest.mark.parametrize("seeds", [range(first, first + 25) for first in range(0, 100, 25)], ids=str)
def test_whatever_fails_no_byte_is_wrong_and_nothing_acked_is_lost(seeds: range) -> None:
    for seed in seeds:
        try:
            Soup(seed).run(120)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
