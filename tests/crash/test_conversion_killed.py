"""The conversion of a data directory is killed again and again, and the next one finds and completes it."""

import signal
import subprocess
import sys
from pathlib import Path
from shutil import copytree

from goqueue.broker.conversion import partitions_of_fact
from goqueue.broker.coordination import PARTITION_COUNTS
from goqueue.storage.file import OsDisk
from goqueue.testing import ManualClock
from tests.broker import brokers
from tests.broker.older import journal_facts, make_older, opens_before
from tests.crash import converter

ROUNDS = 6
UNLIMITED = 1_000_000


def run(data: str, changes: int) -> tuple[int, str]:
    """Convert the directory in a process that dies before that change; returns its exit code and what it printed."""
    command = [sys.executable, converter.__file__, data, str(changes)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout


def older(data: str) -> dict[str, dict[bytes, bytes]]:
    """A directory of the version before, with facts in all journals."""
    disk = OsDisk()
    node = brokers.Node(disk, ManualClock(), path=data)
    for topic in PARTITION_COUNTS:
        for number in range(40):
            name = f"orders/{number}"
            key = {"__groups": f"gname-{number}", "__schedules": f"state/{name}"}.get(topic, f"other-{number}")
            node.done(node.journal(topic, name).put({key.encode(): b"%d" % number}))
    node.broker.close()
    return make_older(disk, data)


def test_a_conversion_that_is_killed_anywhere_is_completed_by_the_next(tmp_path: Path) -> None:
    facts = older(f"{tmp_path}/older")
    copytree(f"{tmp_path}/older", f"{tmp_path}/whole")
    code, printed = run(f"{tmp_path}/whole", UNLIMITED)
    assert code == 0
    took = int(printed)
    formats = []

    for number in range(ROUNDS):
        data = f"{tmp_path}/{number}"
        copytree(f"{tmp_path}/older", data)
        # half of the kills hit the swap at the end, which is short
        at = took * number // ROUNDS if number % 2 else took - 2 * number - 1
        for changes in (at, at // 2):  # also a second time, wherever the first one was
            assert run(data, changes)[0] in (0, -signal.SIGKILL)
            formats.append(opens_before(OsDisk(), data))
        assert run(data, UNLIMITED)[0] == 0
        for topic, before in facts.items():
            after = journal_facts(OsDisk(), data, topic)
            assert {k: v for some in after.values() for k, v in some.items()} == before
            assert len(after) == PARTITION_COUNTS[topic]
            for partition, some in after.items():
                assert some == {k: v for k, v in before.items() if partition in partitions_of_fact(topic, k, v)}
        assert not opens_before(OsDisk(), data)

    assert set(formats) == {True, False}
