"""A streaming job that is killed again and again: driver, Python workers, broker; the output holds each input once.

    python -m tests.spark.kill_streams --kills 30 --seed 7

The job copies `in` to `out` in a process of its own. More input comes before each kill, and the kill comes at a random
moment after that, most often while rows are staged or committed. A query that fails because of it is started again from
its checkpoint: by the job itself, or, if the driver was killed, by a new one. Workers of a driver that was killed live
on for a while, and are welcome to what they can do.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from goqueue import Client, Message
from tests.crash.phoenix import Phoenix, phoenix
from tests.spark.conftest import QUICK

ROOT = Path(__file__).parent.parent.parent
PARTITIONS = 3
PORTION = 240
"""Messages that come before each kill."""
TIMEOUT_S = 180
BATCH_S = 1.2
STAGING_S = 0.15
"""How long a batch takes, about, and how long of that its rows are staged and not committed."""
STAGING_CHANCE = 0.75
"""Of a kill to come in that short time."""
WORKERS = ("pyspark.worker", "python_streaming_sink_runner")
BROKER, WORKER, DRIVER = "broker", "worker", "driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was done to the job, and what it did."""

    kills: Sequence[str]
    failures: int  # how often the query failed
    copied: int
    aborted: int  # records of the output that nobody sees

    def __str__(self) -> str:
        counts = ", ".join(f"{self.kills.count(kind)} {kind}" for kind in sorted(set(self.kills)))
        seen = f"{self.copied} messages copied once, {self.aborted} aborted"
        return f"{len(self.kills)} kills ({counts}), {self.failures} failed queries: {seen}"


class Job:
    """The process that copies; one that was killed is followed by another."""

    def __init__(self, address: str, directory: Path) -> None:
        self._address = address
        self._directory = directory
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._process: subprocess.Popen[str]
        self._listener: threading.Thread
        self.start()

    def start(self) -> None:
        """Start it; it goes on where the last one was."""
        command = [sys.executable, "-m", "tests.spark.kill_streams", "--job", self._address, str(self._directory)]
        with (self._directory / "job.stderr").open("ab") as errors:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
        self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._listener.start()

    def kill(self) -> None:
        """As `kill -9` does, the JVM with it; Python workers have a group of their own and are not hit."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listener.join(TIMEOUT_S)

    def workers(self) -> list[int]:
        """Python workers that stage or commit, and what they are forked from."""
        commands = {pid: _command(pid) for pid in _in_session(self._process.pid)}
        return [pid for pid, command in commands.items() if any(name in command for name in WORKERS)]

    def wait_for(self, word: str, count: int = 1) -> None:
        """Return when it has said so, so often."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.said(word) >= count or "ended" in self._lines, TIMEOUT_S), word
            assert self.said(word) >= count, self.complaints

    def said(self, word: str) -> int:
        return self._lines.count(word)

    def finish(self) -> None:
        """Let it copy what is left, and end."""
        (self._directory / "stop").touch()
        assert self._process.wait(TIMEOUT_S) == 0, self.complaints

    @property
    def complaints(self) -> str:
        return (self._directory / "job.stderr").read_text()[-5_000:]

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout
        with process.stdout as lines:
            for line in lines:
                self._say(line.strip())
        if process.wait() > 0:
            self._say("ended")

    def _say(self, line: str) -> None:
        with self._changed:
            self._lines.append(line)
            self._changed.notify_all()


class Killer:
    """Brings input, and kills."""

    def __init__(self, broker: Phoenix, job: Job, seed: int) -> None:
        self._broker = broker
        self._job = job
        self._rng = random.Random(seed)
        self._patience = threading.Event()
        self.input_count = 0

    def feed(self, count: int = PORTION) -> None:
        """More input; keys are such that a partition of the output has the messages of one of the input."""
        numbers = range(self.input_count, self.input_count + count)
        with Client(self._broker.address, timeout="30s") as gq:
            gq.publish_many("in", [(f"k{number % 11}", str(number)) for number in numbers])
        self.input_count += count

    def wait_for_more(self) -> None:
        """Return when the output has grown, so that a job that only fails is noticed."""
        with Client(self._broker.address, timeout="30s") as gq:
            before = _stable(gq, "out")
            deadline_s = monotonic() + TIMEOUT_S
            self.feed(PARTITIONS * 4)
            while _stable(gq, "out") <= before:
                assert monotonic() < deadline_s, self._job.complaints
                self._patience.wait(0.02)

    def _wait_for_staging(self) -> None:
        with Client(self._broker.address, timeout="30s") as gq:
            deadline_s = monotonic() + TIMEOUT_S
            while not gq.transactions():
                assert monotonic() < deadline_s, self._job.complaints
                self._patience.wait(0.005)

    def _workers(self) -> list[int]:
        """Those that are there, as soon as there are some: a query that has just failed has none."""
        deadline_s = monotonic() + TIMEOUT_S
        while not (found := self._job.workers()):
            assert monotonic() < deadline_s, self._job.complaints
            self._patience.wait(0.01)
        return found

    def kill(self, kind: str) -> None:
        """Kill one of that kind, at some moment from now on, and let it come back."""
        self.feed()
        if self._rng.random() < STAGING_CHANCE:
            self._wait_for_staging()
            self._patience.wait(self._rng.uniform(0, STAGING_S))
        else:
            self._patience.wait(self._rng.uniform(0, BATCH_S))
        if kind == BROKER:
            self._broker.kill()
            self._broker.restart()
        elif kind == WORKER:
            with suppress(ProcessLookupError):
                os.kill(self._rng.choice(self._workers()), signal.SIGKILL)
        else:
            self._job.kill()
            self._job.start()


def run(directory: Path, kinds: Sequence[str], *, seed: int) -> Report:
    """Copy, kill, and compare what is there with what should be."""
    with phoenix(directory / "data") as broker:
        with Client(broker.address) as gq:
            gq.create_topic("in", partitions=PARTITIONS)
            gq.create_topic("out", partitions=PARTITIONS)
        with _running(broker.address, directory) as job:
            job.wait_for("ready")
            killer = Killer(broker, job, seed)
            for kind in kinds:
                killer.wait_for_more()
                killer.kill(kind)
            killer.wait_for_more()
            job.finish()
            failures = job.said("failed")
        with Client(broker.address, timeout="30s") as gq:
            copied, aborted = check(gq, killer.input_count)
    return Report(kills=list(kinds), failures=failures, copied=copied, aborted=aborted)


def check(gq: Client, input_count: int) -> tuple[int, int]:
    """Each input is in the output once, in its order: how many, and how many that are not seen."""
    deadline_s = monotonic() + TIMEOUT_S
    patience = threading.Event()
    while gq.transactions():  # of a worker that outlived its driver
        assert monotonic() < deadline_s
        patience.wait(0.05)
    copied = 0
    for partition in range(PARTITIONS):
        wanted = [_shown(message) for message in gq.read("in", partition=partition)]
        found = [_shown(message) for message in gq.read("out", partition=partition)]
        assert len(set(found)) == len(found), f"{len(found) - len(set(found))} are there twice"
        assert set(found) == set(wanted), f"{len(set(wanted) - set(found))} are missing"
        assert found == wanted, "they are not in order"
        copied += len(found)
    assert copied == input_count
    stored = sum(1 for _ in gq.read("out", isolation="read_uncommitted"))
    return copied, stored - copied


@contextmanager
def _running(address: str, directory: Path) -> Iterator[Job]:
    job = Job(address, directory)
    try:
        yield job
    finally:
        job.kill()


def _shown(message: Message) -> tuple[bytes | None, bytes]:
    return message.key, message.value


def _stable(gq: Client, topic: str) -> int:
    return sum(partition.last_stable_offset for partition in gq.describe_topic(topic).partitions)


def _in_session(pid: int) -> list[int]:
    """All processes of that session, also those whose parents were killed."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(ValueError, OSError):
            if os.getsid(int(name)) == pid:
                found.append(int(name))
    return found


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


# --- the process that copies --------------------------------------------------------------------


def copy(address: str, directory: Path) -> None:
    """Copy until told to stop; a query that fails is started again."""
    from pyspark.errors import StreamingQueryException

    from goqueue.spark.session import local_session

    spark = local_session("kill-streams", master="local[2]", conf=QUICK)
    source = {"server": address, "subscribe": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "150"}
    sink = {"server": address, "topic": "out", "transactionTimeout": "30s"}
    frame = spark.readStream.format("goqueue").options(**source).load().select("key", "value")
    writer = frame.writeStream.format("goqueue").options(**sink).option("checkpointLocation", f"{directory}/checkpoint")
    print("ready", flush=True)
    while True:
        query = writer.start()
        try:
            while not (directory / "stop").exists():
                query.awaitTermination(1)
            query.processAllAvailable()
            query.stop()
            break
        except StreamingQueryException as error:
            print("failed", flush=True)
            print(error, file=sys.stderr, flush=True)
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--job", nargs=2, metavar=("ADDRESS", "DIRECTORY"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.job:
        copy(asked.job[0], Path(asked.job[1]))
        return
    with tempfile.TemporaryDirectory(prefix="kill-streams-") as directory:
        kinds = random.Random(asked.seed).choices((BROKER, WORKER, DRIVER), weights=(5, 5, 2), k=asked.kills)
        print(run(Path(directory), kinds, seed=asked.seed))


if __name__ == "__main__":
    main()
