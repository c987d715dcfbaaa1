"""The transcripts of transactions, played on a broker whose partitions change their leaders after every step.

What owners are told and what readers see in the end is the same as without that. A coordinator that is attached again
has forgotten what was open, as after a restart: so its runs are compared with those of a broker that is killed after
every step, and loses nothing.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from goqueue.broker.coordination import TRANSACTIONS_TOPIC
from goqueue.errors import GoQueueError
from goqueue.service.pending import Pending
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.wire.transaction_reports import TransactionOutcome
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, Got
from tests.broker.flapping import flap
from tests.broker.transactional import Owner, position_of, uncommitted

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("transaction_*.txt"))
DATA = [("orders", 0), ("orders", 1), ("orders", 2), ("in", 0)]
GROUPS = ("billing", "shipping")
INPUTS = 10


class Stage:
    """A broker, and who is in the transcript; an instance `a-new` has the transactional id of `a`."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.disk = MemoryDisk()
        self.node = Node(self.disk, self.clock)
        self.node.create("orders", partitions=3)
        self.node.create("in", visibility_timeout="12h")
        self.node.publish(*(b"%d" % number for number in range(INPUTS)), topic="in")
        self.owners: dict[str, Owner] = {}
        self.told: list[str] = []
        self.waiting: list[Pending[TransactionOutcome]] = []
        self.got: dict[str, list[Got]] = {}
        for group in GROUPS:
            asked = {"topics": ("in",), "mode": "shared", "session_timeout_ms": 1_800_000}
            self.got[group] = Consumer(self.node, group, **asked).poll()

    def run(self, line: str) -> None:
        """One command; an error is an answer."""
        command, *words = line.split()
        options = dict(word.split("=") for word in words if "=" in word)
        try:
            answer = getattr(self, f"do_{command}")(*(word for word in words if "=" not in word), **options)
        except GoQueueError as error:
            answer = error.code
        self.told.append(f"{line}: {answer or 'ok'}")

    def owner(self, name: str) -> Owner:
        owner = self.owners[name]
        owner.node = self.node
        return owner

    def do_init(self, name: str, timeout: str = "60000") -> None:
        self.owners[name] = Owner(self.node, f"t/{name.partition('-')[0]}", timeout_ms=int(timeout))

    def do_begin(self, name: str, marker: str | None = None) -> object:
        return self.owner(name).begin(marker=marker).already_committed

    def do_publish(self, name: str, partition: str, value: str) -> None:
        self.owner(name).publish(value.encode(), partition=int(partition))

    def do_position(self, name: str, group: str, offset: str) -> None:
        self.owner(name).position(int(offset), group=group, topic="in")

    def do_ack(self, name: str, group: str, *offsets: str) -> None:
        wanted = set(map(int, offsets))
        self.owner(name).ack(message for message in self.got[group] if message.offset in wanted)

    def do_commit(self, name: str, *others: str, marker: str | None = None, after: str | None = None) -> object:
        asked = self.owner(name).committing(*map(self.owner, others), marker=marker)
        if after is None:
            return self.node.done(asked)
        self.waiting.append(asked)
        return None

    def do_abort(self, name: str) -> object:
        return self.owner(name).abort()

    def do_admin(self, name: str) -> object:
        return self.node.done(self.node.broker.transactions.abort_by_admin(self.owner(name).id))

    def do_heartbeat(self, name: str) -> None:
        session = self.owner(name).session
        self.node.broker.transactions.heartbeat(session.producer_id, session.epoch)

    def do_go(self) -> object:
        waiting, self.waiting = self.waiting, []
        return [self.node.done(asked) for asked in waiting]

    def do_wait(self, duration_ms: str) -> None:
        self.node.tick(int(duration_ms) / 1_000)

    def do_crash(self, keep: str = "nothing") -> None:
        self.disk = self.disk.crash(keep="everything" if keep == "keep" else "nothing")
        self.node = Node(self.disk, self.clock)
        self.waiting = []

    def do_read(self) -> object:
        return [self.node.values(topic, partition) for topic, partition in DATA]

    def do_show(self) -> object:
        return [(info.transactional_id, info.state) for info in self.node.broker.transactions.list()]

    def end(self) -> object:
        """What is there in the end."""
        self.node.workers.run_all()
        self.node.pass_time(61, step=1)
        done = {}
        for group in GROUPS:
            cursor = self.node.broker.partitions.delivery(self.node.leader("in")).groups[group].cursor
            done[group] = [offset for offset in range(INPUTS) if cursor.is_done(offset)]
        values = [(self.node.values(*place), uncommitted(self.node, *place)) for place in DATA]
        positions = [position_of(self.node, group, "in") for group in GROUPS]
        stable = [
            self.node.leader(*place).last_stable_offset - self.node.leader(*place).high_watermark for place in DATA
        ]
        return values, positions, done, self.do_show(), stable


def played(path: Path, after_each: Callable[[Stage], None]) -> tuple[list[str], object]:
    stage = Stage()
    for block in path.read_text().strip().split("\n\n"):
        for line in block.partition("---")[0].splitlines():
            if line and not line.startswith("#"):
                stage.run(line)
                after_each(stage)
    return stage.told, stage.end()


def _nothing(stage: Stage) -> None:
    """No leader changes."""


def _change_leaders(stage: Stage) -> None:
    for topic, partition in DATA:
        flap(stage.node, topic, partition)


def _attach_again(stage: Stage) -> None:
    flap(stage.node, TRANSACTIONS_TOPIC)
    stage.node.workers.run_all()  # it is attached when all that its log has is committed


def _kill(stage: Stage) -> None:
    stage.do_crash("keep")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_change_of_every_leader_after_every_step_changes_nothing(path: Path) -> None:
    assert played(path, _change_leaders) == played(path, _nothing)


@pytest.mark.parametrize(
    "path", [path for path in SCENARIOS if "after=" not in path.read_text()], ids=lambda path: path.stem
)
def test_a_coordinator_that_is_attached_again_after_every_step_knows_what_a_restarted_one_does(path: Path) -> None:
    assert played(path, _attach_again) == played(path, _kill)
