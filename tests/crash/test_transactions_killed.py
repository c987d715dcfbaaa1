"""Workers consume, process and produce in transactions while the broker is killed: each input has one output.

A worker may also give up in the middle of a transaction, or be replaced by one with the same transactional id. Nothing
of that may be seen in the output, and in the end nothing is left over.
"""

import threading
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from goqueue import Client, Consumer, GoQueueError, ProducerFenced
from tests.crash.phoenix import Phoenix, phoenix

INPUTS = 300
WORKERS = 3
KILLS = 4
PARTITIONS = 2
TIMEOUT_S = 60


class Oops(Exception):
    """What goes wrong in an application."""


class Progress:
    """How many transactions were committed, and a bell for whoever counts."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.is_over = threading.Event()
        self.commits = 0
        self.failures: list[BaseException] = []

    def committed(self) -> None:
        with self._changed:
            self.commits += 1
            self._changed.notify_all()

    def failed(self, error: BaseException) -> None:
        with self._changed:
            self.failures.append(error)
            self._changed.notify_all()

    def wait_for_more(self, count: int) -> None:
        with self._changed:
            wanted = self.commits + count
            assert self._changed.wait_for(lambda: self.commits >= wanted or self.failures, TIMEOUT_S)
            assert not self.failures, self.failures[0]


class Worker(threading.Thread):
    """Puts what comes from the input to the output, in transactions of a few messages."""

    def __init__(self, number: int, address: str, progress: Progress) -> None:
        super().__init__()
        self._number = number
        self._address = address
        self._progress = progress
        self._rng = Random(number)

    def run(self) -> None:
        try:
            while not self._progress.is_over.is_set():
                self._live()
        except BaseException as error:
            self._progress.failed(error)

    def _live(self) -> None:
        """Until it is fenced or bored: then another one comes in its place."""
        asked = {"group": "workers", "mode": "shared", "visibility": "1s", "session_timeout": "5s"}
        with Client(self._address, timeout="20s") as gq, gq.consumer("in", **asked) as consumer:
            while not self._progress.is_over.is_set() and self._rng.random() > 0.02:
                try:
                    self._process(gq, consumer)
                except ProducerFenced:
                    return
                except (GoQueueError, Oops):
                    continue

    def _process(self, gq: Client, consumer: Consumer) -> None:
        batch = consumer.poll(self._rng.randrange(1, 8), timeout="200ms")
        if not batch:
            return
        with gq.transaction(f"worker-{self._number}", timeout="3s") as tx:
            for message in batch:
                tx.send("out", message.value, key=message.value)
            tx.ack(batch)
            tx.send("audit", b" ".join(message.value for message in batch))
            if self._rng.random() < 0.1:
                raise Oops
        self._progress.committed()


def kill_now_and_then(broker: Phoenix, progress: Progress) -> None:
    rng = Random(5)
    for _ in range(KILLS):
        progress.wait_for_more(rng.randrange(1, 8))
        broker.kill()
        broker.restart()
    progress.wait_for_more(1)


def wait_until_all_is_done(gq: Client, progress: Progress) -> None:
    patience = threading.Event()
    for _ in range(TIMEOUT_S * 20):
        assert not progress.failures, progress.failures[0]
        if sum(position.lag for position in gq.group_positions("workers", topic="in")) == 0:
            return
        patience.wait(0.05)
    pytest.fail("the workers never came to an end")


def test_each_input_has_one_output_though_the_broker_is_killed_again_and_again(tmp_path: Path) -> None:
    progress = Progress()
    inputs = [b"%d" % number for number in range(INPUTS)]
    with phoenix(tmp_path / "data") as broker:
        with Client(broker.address) as gq:
            for topic in ("in", "out", "audit"):
                gq.create_topic(topic, partitions=PARTITIONS, segment_bytes=64 * 1024, max_deliveries=1_000)
            gq.publish_many("in", inputs)
        workers = [Worker(number, broker.address, progress) for number in range(WORKERS)]
        for worker in workers:
            worker.start()
        try:
            kill_now_and_then(broker, progress)
            with Client(broker.address) as gq:
                wait_until_all_is_done(gq, progress)
        finally:
            progress.is_over.set()
            for worker in workers:
                worker.join(timeout=TIMEOUT_S)
        check(broker.address, inputs)
        broker.kill()
        broker.restart()
        check(broker.address, inputs)


def check(address: str, inputs: list[bytes]) -> None:
    with Client(address) as gq:
        outputs = [message.value for message in gq.read("out")]
        audited = [value for message in gq.read("audit") for value in message.value.split()]
        doubled = [value for value, count in Counter(outputs).items() if count > 1]
        assert not doubled, f"{len(doubled)} are there twice"
        assert sorted(outputs) == sorted(inputs)
        assert sorted(audited) == sorted(inputs), "one topic tells something else than the other"
        assert [position.lag for position in gq.group_positions("workers", topic="in")] == [0] * PARTITIONS
        assert gq.transactions() == []
        assert "in.dlq" not in gq.topics()
        assert sum(member.in_flight for member in gq.describe_group("workers").members) == 0
        stored = list(gq.read("out", isolation="read_uncommitted"))
        assert len(stored) > len(outputs), "nothing was ever aborted, so nothing is tested"
