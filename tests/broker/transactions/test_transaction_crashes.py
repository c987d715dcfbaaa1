"""Whatever the moment at which a broker ends, its transactions count as a whole or not at all, for every reader.

One run of a workload is filmed: before each operation of the disk, all that a crash could leave of it is kept, with
what the owners had been told by then. A broker is started on every picture, twice, and everything is looked at.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import NamedTuple, TypeVar

import pytest

from goqueue.errors import TransactionError
from goqueue.service.pending import Pending
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.testing.inode import Keep
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, Got, floor, offsets
from tests.broker.transactional import Owner, position_of

PARTITIONS = (("out", 0), ("out", 1), ("audit", 0))
FRESH = count()
INPUTS = 8
SESSION_MS = 300_000
LEASE_S = 30
T = TypeVar("T")


class FilmedDisk(MemoryDisk):
    """A disk that tells before each change of it."""

    def __init__(self) -> None:
        super().__init__()
        self.before_change: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, other: MemoryDisk) -> "FilmedDisk":
        """One that has what the other has."""
        disk = cls()
        disk._root, disk.used_bytes = other._root, other.used_bytes
        return disk

    def _spend(self, steps: int) -> int:
        self.before_change()
        return super()._spend(steps)

    def picture(self, keep: Keep, seed: int) -> MemoryDisk:
        """What a crash would leave now."""
        disk = self.crash(seed, keep=keep)
        self._crashed = False
        return disk


class SlowNode(Node):
    """A broker whose workers do no more than is needed for an answer, in any order."""

    def __init__(self, disk: MemoryDisk, clock: ManualClock, seed: int) -> None:
        super().__init__(disk, clock)
        self._random = Random(seed)

    def done(self, pending: Pending[T]) -> T:
        while not pending.is_done:
            self.workers.jobs.rotate(self._random.randrange(4))
            self.workers.run_one()
        return pending.result()


@dataclass
class Part:
    """One transaction: what it wrote and acknowledged, and what its owner was told of it."""

    owner: Owner
    values: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    acks: set[int] = field(default_factory=set)
    position: int = 0
    asked: str = ""  # commit or abort
    told: str = ""


class Facts(NamedTuple):
    """What was known of a transaction at the moment of a crash."""

    name: str
    owner: Owner
    values: dict[tuple[str, int], list[bytes]]
    acks: set[int]
    position: int
    asked: str
    told: str


class Picture(NamedTuple):
    """A disk after a crash, and what was known before."""

    disk: MemoryDisk
    wall_ns: int
    parts: dict[str, Facts]


class Workload:
    """Owners, consumers and readers on one broker."""

    def __init__(self, keep: Keep, seed: int) -> None:
        self.disk = FilmedDisk()
        self.clock = ManualClock()
        self.node: Node = Node(self.disk, self.clock) if seed % 2 else SlowNode(self.disk, self.clock, seed)
        self.parts: dict[str, Part] = {}
        self.pictures: list[Picture] = []
        self._keep = keep
        self._seed = seed
        self._seen: set[int] = set()

    def film(self) -> None:
        """From now on a picture is taken before each change."""
        self.disk.before_change = self._take

    def _take(self) -> None:
        self._seed += 1
        disk = self.disk.picture(self._keep, self._seed)
        known = {
            name: Facts(name, one.owner, {p: [*v] for p, v in one.values.items()}, {*one.acks}, one.position,
                        one.asked, one.told)
            for name, one in self.parts.items()
        }  # fmt: skip
        files = tuple((path, disk.read(path)) for path in disk.paths())
        content = hash((files, tuple((one.name, one.asked, one.told) for one in known.values())))
        if content not in self._seen:
            self._seen.add(content)
            self.pictures.append(Picture(disk, self.clock.wall_ns(), known))

    # --- what owners do ------------------------------------------------------------------------

    def begin(self, name: str, owner: Owner) -> Part:
        part = self.parts[name] = Part(owner)
        owner.begin()
        part.owner = owner.moved_to(self.node)  # which has this transaction, whatever the owner does later
        return part

    def publish(self, name: str, topic: str, partition: int, count: int = 2, *, waits: bool = True) -> None:
        part = self.parts[name]
        known = part.values.setdefault((topic, partition), [])
        values = [f"{name}:{topic}:{partition}:{len(known) + index}".encode() for index in range(count)]
        known += values
        sent = part.owner.send(*values, topic=topic, partition=partition)
        if waits:
            self.node.done(sent)

    def ack(self, name: str, messages: list[Got]) -> None:
        self.parts[name].acks |= set(offsets(messages))
        self.parts[name].owner.ack(messages)

    def position(self, name: str, offset: int) -> None:
        self.parts[name].position = offset
        self.parts[name].owner.position(offset, topic="in")

    def commit(self, *names: str) -> None:
        parts = [self.parts[name] for name in names]
        for part in parts:
            part.asked = "commit"
        first, *others = parts
        committing = first.owner.committing(*(other.owner for other in others))
        committing.then(lambda done: self._told(parts, done.result().status))
        self.node.done(committing)

    def abort(self, name: str) -> None:
        part = self.parts[name]
        part.asked = "abort"
        aborting = part.owner.aborting()
        aborting.then(lambda done: self._told([part], done.result().status))
        self.node.done(aborting)

    def _told(self, parts: list[Part], status: str) -> None:
        for part in parts:
            part.told = status


def run(keep: Keep, seed: int = 0) -> Workload:
    """Two transactions that are committed together, one that is aborted, one that follows, one that is left open."""
    work = Workload(keep, seed)
    node = work.node
    node.create("in")
    node.create("out", partitions=2)
    node.create("audit")
    node.publish(*(b"%d" % number for number in range(INPUTS)), topic="in")
    owners = {name: Owner(node, f"team/{name}") for name in ("anna", "ben", "carl")}
    node.workers.run_all()
    work.film()
    consumer = Consumer(node, topics=("in",), mode="shared", session_timeout_ms=SESSION_MS)
    got = consumer.poll()
    work.begin("carl-1", owners["carl"])
    work.publish("carl-1", "out", 0)
    work.begin("anna-1", owners["anna"])
    work.publish("anna-1", "out", 0)
    work.begin("ben-1", owners["ben"])
    work.publish("ben-1", "out", 1)
    work.publish("carl-1", "audit", 0)
    work.publish("anna-1", "audit", 0)
    work.ack("anna-1", got[:2])
    work.ack("ben-1", got[2:3])
    work.ack("carl-1", got[6:7])
    work.position("anna-1", 3)
    work.publish("anna-1", "out", 1, 1)
    work.publish("anna-1", "out", 0, 1, waits=False)
    work.commit("anna-1", "ben-1")
    work.abort("carl-1")
    node.clock.advance(11)  # now the next flush takes snapshots with it
    work.begin("anna-2", owners["anna"])
    work.begin("carl-2", owners["carl"])
    work.publish("carl-2", "out", 1)
    work.ack("anna-2", got[3:5])
    work.position("anna-2", 5)
    for topic, partition in PARTITIONS:
        work.publish("anna-2", topic, partition, waits=False)
    work.commit("anna-2")
    work.publish("carl-2", "audit", 0)
    node.workers.run_all()
    return work


# --- what has to hold ----------------------------------------------------------------------------


def stored(node: Node, topic: str, partition: int) -> list[bytes]:
    """What is committed, and that nothing is undecided."""
    info = node.broker.topics.describe(topic).partitions[partition]
    assert info.last_stable_offset == info.high_watermark, "somebody would wait"
    return node.values(topic, partition)


def delivered(node: Node, topic: str) -> dict[int, list[bytes]]:
    """What a new group gets, partition by partition."""
    consumer = Consumer(node, f"fresh-{next(FRESH)}", topics=(topic,))
    found: dict[int, list[bytes]] = {}
    for message in consumer.poll(1_000):
        found.setdefault(message.partition, []).append(message.value)
    consumer.leave()
    return found


def outcomes(node: Node, parts: dict[str, Facts]) -> dict[str, bool]:
    """Which transactions are committed; none is in part, and none is against what its owner was told."""
    seen = {place: stored(node, *place) for place in PARTITIONS}
    found = {}
    for name, part in parts.items():
        whole = {place: [value for value in values if value in seen[place]] for place, values in part.values.items()}
        is_committed = whole == part.values and part.asked == "commit"
        assert is_committed or not any(whole.values()), f"half of {name}"
        assert is_committed if part.told == "committed" else True, f"{name} is lost"
        assert part.asked == "commit" if is_committed else True, f"{name} was never asked for"
        found[name] = is_committed
    for place, values in seen.items():
        assert len(values) == len(set(values)), f"twice in {place}"
    for topic in ("out", "audit"):
        group = delivered(node, topic)
        for number in range(2 if topic == "out" else 1):
            assert group.get(number, []) == seen[topic, number], "a group sees something else"
    if "anna-1" in found and "ben-1" in found:
        assert found["anna-1"] == found["ben-1"], "committed together, and not decided together"
    return found


def check_acks(node: Node, parts: dict[str, Facts], committed: dict[str, bool]) -> None:
    """What committed transactions acknowledged is done, and nothing else; positions are where they put them."""
    done = {offset for name, part in parts.items() if committed[name] for offset in part.acks}
    cursor = node.broker.partitions.delivery(node.leader("in")).groups.get("workers")
    if cursor is not None:
        assert {offset for offset in range(INPUTS) if cursor.cursor.is_done(offset)} == done
    else:
        assert not done
    expected = max((part.position for name, part in parts.items() if committed[name]), default=0)
    assert position_of(node, topic="in") == expected


def check_rest_is_delivered(node: Node, parts: dict[str, Facts], committed: dict[str, bool]) -> None:
    """All that was not acknowledged comes again, as soon as nobody can have it any more."""
    done = {offset for name, part in parts.items() if committed[name] for offset in part.acks}
    consumer = Consumer(node, topics=("in",), mode="shared", session_timeout_ms=SESSION_MS)
    found: set[int] = set()
    for _ in range(4):
        messages = consumer.poll()
        found |= set(offsets(messages))
        consumer.ack(messages)
        node.pass_time(LEASE_S, step=10)
    assert found == set(range(INPUTS)) - done
    assert floor(node, topic="in") == INPUTS


def check_repeated(node: Node, parts: dict[str, Facts], committed: dict[str, bool]) -> None:
    """Whoever has lost the answer asks again, and hears what is so."""
    for name in ("anna-1", "anna-2"):
        part = parts.get(name)
        is_last = name == "anna-2" or "anna-2" not in parts
        if part is None or part.asked != "commit" or not is_last:
            continue
        others = [parts["ben-1"].owner.moved_to(node)] if name == "anna-1" else []
        try:
            status = part.owner.moved_to(node).commit(*others).status
        except TransactionError:
            status = "aborted"
        assert (status == "committed") == committed[name]


def check_goes_on(node: Node) -> None:
    """Everybody can go on under the same transactional ids."""
    for number, name in enumerate(("anna", "ben", "carl")):
        owner = Owner(node, f"team/{name}")
        owner.begin()
        values = {place: f"next-{name}-{place}".encode() for place in PARTITIONS}
        for (topic, partition), value in values.items():
            owner.publish(value, topic=topic, partition=partition)
        owner.commit() if number else owner.abort()
        for place, value in values.items():
            assert (value in stored(node, *place)) == bool(number)


def check(picture: Picture, number: int) -> None:
    """One start is looked at always, what follows it now and then."""
    clock = ManualClock(picture.wall_ns)
    first = Node(picture.disk, clock)
    before = outcomes(first, picture.parts)
    check_acks(first, picture.parts, before)
    check_repeated(first, picture.parts, before)
    if number % 3:
        return
    second_disk = picture.disk.crash(keep="nothing")
    second = Node(second_disk, clock)
    assert outcomes(second, picture.parts) == before, "another outcome after another start"
    check_acks(second, picture.parts, before)
    check_repeated(second, picture.parts, before)
    if number % 2:
        return
    check_rest_is_delivered(second, picture.parts, before)
    check_goes_on(second)
    second.broker.close()
    third = Node(second_disk.crash(keep="nothing"), clock)
    assert outcomes(third, picture.parts) == before, "another outcome after a stop"


CRASHES: list[tuple[Keep, int]] = [
    ("nothing", 1), ("nothing", 2), ("everything", 1), ("everything", 2), ("random", 1), ("random", 10_000)
]  # fmt: skip


@pytest.mark.parametrize(("keep", "seed"), CRASHES)
def test_a_crash_at_any_step_leaves_all_or_nothing(keep: Keep, seed: int) -> None:
    pictures = run(keep, seed).pictures
    assert {part.told for picture in pictures for part in picture.parts.values()} == {"", "committed", "aborted"}
    for number, picture in enumerate(pictures[:: 2 if keep == "random" else 1]):
        check(picture, number)


@pytest.mark.parametrize("keep", ["nothing", "everything"])
def test_a_crash_at_any_step_of_the_start_after_a_crash_leaves_all_or_nothing(keep: Keep) -> None:
    seen: set[int] = set()
    for picture in run("nothing", 4).pictures[::6]:
        disk = FilmedDisk.of(picture.disk)
        found: list[Picture] = []
        disk.before_change = partial(_take_again, disk, keep, picture, found, seen)
        node = Node(disk, ManualClock(picture.wall_ns))
        node.workers.run_all()
        for number, again in enumerate(found):
            check(again, 1 + number % 3)


def _take_again(disk: FilmedDisk, keep: Keep, before: Picture, found: list[Picture], seen: set[int]) -> None:
    after = disk.picture(keep, 0)
    content = hash(tuple((path, after.read(path)) for path in after.paths()))
    if content not in seen:
        seen.add(content)
        found.append(before._replace(disk=after))
