"""A child of a fork has the memory of its parent and not its threads: it is told so, and refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from goqueue import Client
from tests.client.test_consumer import floor

GENERATIONS = """
import os

from goqueue.client import forks


class Noting:
    told = 0

    def forked(self):
        self.told += 1


def child(work):
    pid = os.fork()
    if not pid:
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


kept, dropped, before = Noting(), Noting(), forks.generation
forks.tell(dropped.forked)
del dropped
forks.tell(kept.forked)

print(child(lambda: 10 * (forks.generation - before) + kept.told))
print(child(lambda: child(lambda: 10 * (forks.generation - before) + kept.told)))
print(10 * (forks.generation - before) + kept.told)
"""


def test_each_fork_is_one_generation_more_and_is_told_to_objects_that_live() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", GENERATIONS], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.stderr, done.stdout.split()) == ("", ["11", "22", "0"])


@pytest.mark.parametrize("use", ["send", "keyed", "flush", "publish", "topics"])
def test_nothing_can_be_used_after_a_fork_but_the_parent_goes_on(address: str, use: str) -> None:
    script = Path(__file__).with_name("forking.py")

    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), address, use],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("use", ["poll", "ack", "with", "consume", "close"])
def test_a_child_is_refused_and_its_parent_goes_on(address: str, one: Client, use: str) -> None:
    child = Path(__file__).with_name("forking_consumer.py")
    command = [sys.executable, str(child), address, use]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert floor(one) == 10
