"""A process that appends for as long as it lives, and says on its stdout how much of that is durable.

    python writer.py <data directory> <seed>

Each flush runs in a thread while the next batches are appended. After each, the durable offset goes out in
eight bytes: whoever reads it has an acknowledgement in hand. What a record holds follows from its offset.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from random import Random
from time import monotonic_ns, time_ns

from goqueue.record import kernel
from goqueue.storage.config import LogConfig
from goqueue.storage.directory import DataDirectory
from goqueue.storage.file import OsDisk
from goqueue.storage.log import Log

CONFIG = LogConfig(segment_bytes=50_000)
TOPIC = "kill"
ACK_BYTES = 8


def value_at(offset: int) -> bytes:
    """What the record with this offset holds: a hash of it, up to some seven hundred bytes of it."""
    return blake2b(offset.to_bytes(8, "big"), digest_size=16).digest() * (offset * 7 % 45)


def append_some(log: Log, rng: Random) -> None:
    first = log.next_offset
    values = [value_at(offset) for offset in range(first, first + rng.randrange(1, 30))]
    log.append(kernel.encode(values), now_ns=time_ns())


def write(path: str, rng: Random) -> None:
    log = DataDirectory.open(OsDisk(), path).open_log(TOPIC, 0, CONFIG)
    with ThreadPoolExecutor(max_workers=1) as pool:
        while True:
            append_some(log, rng)
            job = log.begin_flush(monotonic_ns=monotonic_ns())
            assert job
            running = pool.submit(job.run)
            for _ in range(rng.randrange(5)):
                append_some(log, rng)
            running.result()
            log.complete(job)
            os.write(sys.stdout.fileno(), log.durable_offset.to_bytes(ACK_BYTES, "big"))


if __name__ == "__main__":
    write(sys.argv[1], Random(sys.argv[2]))
