"""Damage that readers report: told once, however often it is read."""

from goqueue import events
from goqueue.storage.config import LogConfig
from goqueue.storage.log import Log
from goqueue.testing import MemoryDisk
from tests.storage.logs import DIRECTORY, FIRST, RECORD_BYTES, fill, read_all


def test_damage_is_told_once(disk: MemoryDisk) -> None:
    seen: list[events.Event] = []
    log = Log.open(disk, DIRECTORY, LogConfig(), observe=seen.append)
    fill(log, 5)
    disk.flip_bit(FIRST, RECORD_BYTES + 60, 0)

    for _ in range(3):
        read_all(log)

    assert seen == [
        events.DamageFound(
            log=DIRECTORY,
            path=FIRST,
            position=RECORD_BYTES,
            bytes=RECORD_BYTES,
            first_offset=1,
            next_offset=2,
            reason="checksum mismatch",
        )
    ]
    assert "offsets [1, 2)" in str(log.damage[0])
