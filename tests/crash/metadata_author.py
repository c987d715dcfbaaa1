"""A process that appends so many entries to a metadata log in files, and names each on its stdout.

    python metadata_author.py <directory> <node> <count> <seed>

Whoever reads the index and the id of an entry has the answer of its append in hand.
"""

import asyncio
import os
import sys
from random import Random

from goqueue.cluster.file_log import FileMetadataLog
from goqueue.cluster.metadata_log import ID_BYTES, EntryAppended, EntryUnknown, MetadataEntry
from goqueue.storage.file import OsDisk

SEGMENT_BYTES = 100_000
ANSWER_BYTES = 8 + ID_BYTES


async def write(directory: str, node: int, count: int, rng: Random) -> None:
    log = await FileMetadataLog.open(OsDisk(), directory, deadline_s=30.0, segment_bytes=SEGMENT_BYTES)
    while count:
        after = await log.tail()
        batch = rng.randbytes(rng.choice((0, 100, 10_000)))
        entry = MetadataEntry(after.index + 1, os.urandom(ID_BYTES), after.id, 1, node, batch)
        while isinstance(outcome := await log.append(entry), EntryUnknown):
            pass
        if isinstance(outcome, EntryAppended):
            os.write(sys.stdout.fileno(), entry.index.to_bytes(8, "big") + entry.id)
            count -= 1
    await log.close()


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Random(int(sys.argv[4]))))
