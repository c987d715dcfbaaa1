"""Three processes append to one metadata log in files, one of them is killed again and again, and no answer is lost."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

from goqueue.cluster.file_log import FileMetadataLog
from goqueue.cluster.metadata_log import EMPTY, MetadataEntry
from goqueue.storage.file import OsDisk
from tests.crash import metadata_author
from tests.crash.metadata_author import ANSWER_BYTES

ENTRIES = 200
KILLS = 6

Answers = list[tuple[int, bytes]]


def start_author(directory: str, node: int, count: int, seed: int = 0) -> "subprocess.Popen[bytes]":
    arguments = (directory, str(node), str(count), str(seed))
    return subprocess.Popen([sys.executable, metadata_author.__file__, *arguments], stdout=subprocess.PIPE)


def answers_in(raw: bytes) -> Answers:
    answers = [raw[start : start + ANSWER_BYTES] for start in range(0, len(raw), ANSWER_BYTES)]
    return [(int.from_bytes(answer[:8], "big"), answer[8:]) for answer in answers]


def rest_of(process: "subprocess.Popen[bytes]") -> Answers:
    answers, _ = process.communicate()
    assert process.returncode == 0
    return answers_in(answers)


def killed_after(process: "subprocess.Popen[bytes]", count: int) -> Answers:
    """The answers of a process that is killed when it has given so many, or a few more."""
    assert process.stdout
    answers = process.stdout.read(count * ANSWER_BYTES)
    process.send_signal(signal.SIGKILL)
    more, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL
    return answers_in(answers + more)


async def everything_in(directory: str) -> list[MetadataEntry]:
    log = await FileMetadataLog.open(OsDisk(), directory)
    end = await log.tail()
    entries = []
    async for entry in log.watch(1):
        entries.append(entry)
        if entry.position == end:
            break
    await log.close()
    return entries


def test_the_log_is_one_chain_with_every_entry_that_was_answered(tmp_path: Path) -> None:
    directory = f"{tmp_path}/log"
    rng = Random(5)
    steady = [start_author(directory, node, ENTRIES) for node in (1, 2)]
    answered: Answers = []
    for number in range(KILLS):
        answered += killed_after(start_author(directory, 3, 10 * ENTRIES, number), rng.randrange(1, 30))
    missing = max(0, ENTRIES - len(answered))
    answered += rest_of(start_author(directory, 3, missing))
    for process in steady:
        answered += rest_of(process)

    history = asyncio.run(everything_in(directory))

    after = EMPTY
    for entry in history:
        assert entry.after == after
        after = entry.position
    assert len(answered) >= 3 * ENTRIES
    assert len(set(answered)) == len(answered)
    assert set(answered) <= {(entry.index, entry.id) for entry in history}
    # Of each process that was killed, one entry at most is there that it did not report.
    assert len(history) - len(answered) <= KILLS
    assert len(list(Path(directory).glob("*.entries"))) > 1
