"""A group whose coordinator ends and begins again is the same: members notice nothing, or an error to retry."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue import events
from goqueue.broker.broker import Broker
from goqueue.broker.coordination import GROUPS_TOPIC, PARTITION_COUNTS, partition_of
from goqueue.clock import MS
from goqueue.errors import GoQueueError, GroupNotFound, NotLeader, SessionExpired
from goqueue.metrics.registry import Metrics
from goqueue.runtime.entropy import SeededEntropy
from goqueue.service.groups import Join
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.wire import reports
from goqueue.wire.reports import PartitionName
from tests.broker.brokers import ROOT, ManualWorkers, Node
from tests.broker.consumers import Consumer
from tests.broker.test_role_changes import MODES, STEPS, Scenario, Step, change_leaders
from tests.groups.test_scenarios import SCENARIOS, blocks, partition

GROUP = "workers"
PARTITION = partition_of(GROUP, GROUPS_TOPIC)


def detach(node: Node, group: str = GROUP) -> None:
    """The coordinator of the group ends."""
    node.broker.partitions.resign(GROUPS_TOPIC, partition_of(group, GROUPS_TOPIC))
    node.workers.run_all()


def attach(node: Node, group: str = GROUP) -> None:
    """The coordinator of the group begins again."""
    node.broker.partitions.become_leader(GROUPS_TOPIC, partition_of(group, GROUPS_TOPIC))
    node.workers.run_all()


def change_coordinator(node: Node, group: str = GROUP) -> None:
    detach(node, group)
    attach(node, group)


def change_everything(node: Node) -> None:
    """All partitions change their leaders while nobody coordinates the group."""
    detach(node)
    change_leaders(node)
    attach(node)


# --- the same final state ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=30)
@given(steps=st.lists(STEPS, max_size=15))
def test_changes_of_coordinator_after_every_step_change_nothing(mode: str, steps: list[Step]) -> None:
    count = 2 if mode == "partitioned" else 1  # which partition a member is served from first is forgotten
    steady = Scenario(mode, lambda node: None, partitions=count).run(steps)
    changing = Scenario(mode, change_coordinator, partitions=count).run(steps)
    everything = Scenario(mode, change_everything, partitions=count).run(steps)

    assert changing.told == everything.told == steady.told
    assert changing.state() == everything.state() == steady.state()


class Stage:
    """A transcript of tests/scenarios, played on a broker that changes something after each command."""

    def __init__(self) -> None:
        self.node = Node(MemoryDisk(), ManualClock(), entropy=SeededEntropy(1))

    def changed(self) -> None:
        """What happens after each command."""

    def play(self, text: str) -> list[str]:
        """What the commands lead to."""
        told: list[str] = []
        for _, commands, _ in blocks(text):
            for line in commands:
                command, *arguments = line.split()
                try:
                    told += [line, *(getattr(self, f"do_{command}")(*arguments) or ())]
                except GoQueueError as error:
                    told.append(f"refused: {error.code}: {error}")
                self.node.workers.run_all()
                if GROUPS_TOPIC in self.node.broker.topics.list(internal=True):
                    self.changed()
                told += self.do_show()
        return told

    def do_topic(self, name: str, count: str) -> None:
        if int(count):
            self.node.create(name, partitions=int(count))
        else:
            self.node.done(self.node.broker.topics.delete(name))

    def do_join(self, member_id: str, *words: str) -> None:
        settings: dict[str, object] = {}
        topics = []
        for word in words:
            match word.split("="):
                case ["confirms"]:
                    settings["confirms_revocations"] = True
                case ["eager"]:
                    settings["protocol"] = word
                case ["shared" | "key-shared"]:
                    settings["mode"] = word
                case ["range" | "roundrobin"]:
                    settings["assignor"] = word
                case ["session", value]:
                    settings["session_timeout_ms"] = int(value)
                case _:
                    topics.append(word)
        self.node.done(self.node.broker.groups.join(GROUP, Join("app", tuple(topics), member_id)._replace(**settings)))

    def do_heartbeat(self, member_id: str, generation: str | None = None) -> Iterator[str]:
        number = int(generation) if generation else None
        yield repr(self.node.broker.groups.heartbeat(GROUP, member_id, number, is_cooperative=True))

    def do_use(self, member_id: str, generation: str) -> Iterator[str]:
        polled = self.node.done(self.node.broker.groups.poll(GROUP, member_id, generation=int(generation))).polled
        yield repr(polled)

    def do_revoke(self, member_id: str, *partitions: str) -> Iterator[str]:
        given = [PartitionName(*partition(name)) for name in partitions] or None
        yield repr(self.node.broker.groups.revoke(GROUP, member_id, None, given))

    def do_leave(self, member_id: str) -> None:
        self.node.done(self.node.broker.groups.leave(GROUP, member_id))

    def do_wait(self, duration_ms: str, *members: str) -> None:
        left_ms = int(duration_ms)
        while left_ms:
            step_ms = min(1_000, left_ms)
            left_ms -= step_ms
            self.node.clock.advance(step_ms * MS / 1e9)
            for member_id in members:
                self.node.broker.groups.poll(GROUP, member_id)
            self.node.broker.tick()

    def do_restart(self) -> None:
        self.reopen()

    def do_show(self) -> Iterator[str]:
        try:
            yield repr(self.node.broker.groups.describe(GROUP))
            yield repr(self.node.broker.groups.rebalance_stats(GROUP))
        except GroupNotFound:
            yield "no group"

    def reopen(self) -> None:
        self.node.broker.close()
        self.node = Node(self.node.disk, self.node.clock, entropy=SeededEntropy(1))


class Reopening(Stage):
    """The broker is started again."""

    def changed(self) -> None:
        self.reopen()


class Changing(Stage):
    """The coordinator changes."""

    def changed(self) -> None:
        change_coordinator(self.node)


PLAYED = [path for path in SCENARIOS if "grown" not in path.stem]  # a topic of a broker does not grow


@pytest.mark.parametrize("path", PLAYED, ids=lambda path: path.stem)
def test_a_change_of_coordinator_after_every_command_is_as_a_restart_after_every_command(path: Path) -> None:
    text = path.read_text()

    assert Changing().play(text) == Reopening().play(text)


# --- while nobody coordinates --------------------------------------------------------------------


def two_groups(node: Node) -> tuple[Consumer, Consumer]:
    """A group whose coordinator will end, and one that keeps its own."""
    node.create(partitions=2)
    other = next(name for name in map(str, range(50)) if partition_of(name, GROUPS_TOPIC) != PARTITION)
    return Consumer(node), Consumer(node, other)


def test_verbs_about_a_group_that_is_coordinated_elsewhere_name_its_partition(node: Node) -> None:
    member, other = two_groups(node)
    groups = node.broker.groups
    commit = [reports.PositionCommit("orders", 0, 0)]

    detach(node)

    for call in (
        lambda: node.done(groups.join(GROUP, Join("c", ("orders",)))),
        lambda: node.done(groups.poll(GROUP, member.id)),
        lambda: groups.heartbeat(GROUP, member.id),
        lambda: groups.revoke(GROUP, member.id),
        lambda: groups.leave(GROUP, member.id),
        lambda: groups.describe(GROUP),
        lambda: groups.delete(GROUP),
        lambda: groups.rebalance_stats(GROUP),
        lambda: groups.blocked(GROUP),
        lambda: groups.lanes(group=GROUP),
        lambda: groups.positions(GROUP),
        lambda: groups.done_above(GROUP),
        lambda: node.done(groups.commit(GROUP, commit)),
        lambda: node.done(groups.reset(GROUP, "earliest")),
    ):
        with pytest.raises(NotLeader, match=f"{GROUPS_TOPIC}-{PARTITION}") as caught:
            call()
        assert caught.value.retryable
    assert groups.names() == [other.group]
    assert {one.group for one in groups.standings()} == {other.group}
    assert groups.describe(other.group).state == "Stable"
    with pytest.raises(GroupNotFound):  # its partition is here, and does not know it
        groups.describe(next(f"no-{n}" for n in range(50) if partition_of(f"no-{n}", GROUPS_TOPIC) != PARTITION))


def test_a_poll_that_waits_fails_when_its_coordinator_ends(node: Node) -> None:
    member, other = two_groups(node)
    waiting, of_other = member.wait(wait_ms=5_000), other.wait(wait_ms=5_000)

    detach(node)

    with pytest.raises(NotLeader):
        waiting.result()
    assert not of_other.is_done
    attach(node)
    node.publish(b"a")
    assert [one.value for one in member.poll()] == [b"a"]
    assert of_other.is_done


def test_leases_outlive_the_coordinator_and_are_settled_meanwhile(node: Node) -> None:
    member, _ = two_groups(node)
    node.publish(b"a", b"b", b"c")
    first, second, third = member.poll()

    detach(node)
    node.done(member.begin("ack", [first.receipt]))
    attach(node)

    assert node.broker.groups.describe(GROUP).members[0].in_flight == 2
    assert member.poll() == []
    member.ack([second])
    member.settle("nack", [third])
    node.pass_time(5)
    assert [one.value for one in member.poll()] == [b"c"]


def test_a_session_begins_anew_with_the_coordinator(node: Node) -> None:
    node.create()
    member = Consumer(node, session_timeout_ms=10_000)
    node.pass_time(9, step=1)
    detach(node)
    node.pass_time(60, step=5)  # nobody counts it
    attach(node)

    node.pass_time(9, step=1)
    node.broker.groups.heartbeat(GROUP, member.id)
    node.pass_time(11, step=1)

    with pytest.raises(SessionExpired):
        node.broker.groups.heartbeat(GROUP, member.id)


def test_a_topic_that_is_deleted_while_nobody_coordinates_the_group_is_noticed(node: Node) -> None:
    node.create("orders")
    node.create("bills")
    member = Consumer(node, topics=("bills", "orders"))
    before = node.broker.groups.describe(GROUP).generation
    detach(node)

    node.done(node.broker.topics.delete("bills"))
    attach(node)

    info = node.broker.groups.describe(GROUP)
    assert [one.topic for one in info.members[0].partitions] == ["orders"]
    assert info.generation > before
    assert node.broker.groups.heartbeat(GROUP, member.id, is_cooperative=True).generation == info.generation


def test_what_was_handed_over_without_leases_is_committed_by_the_next_poll(node: Node) -> None:
    node.create()
    node.publish(*(b"%d" % number for number in range(6)))
    member = Consumer(node, ack="offsets", auto_commit=True)
    for _ in range(3):
        member.poll(1)

    change_coordinator(node)

    assert [one.value for one in member.poll(1)] == [b"3"]
    node.pass_time(6, step=1)
    assert {one.offset for one in node.broker.groups.positions(GROUP)} == {3}


def test_the_series_about_members_leave_with_the_coordinator(disk: MemoryDisk, clock: ManualClock) -> None:
    told: list[events.Event] = []
    node = object.__new__(Node)
    node.disk, node.clock, node.workers = disk, clock, ManualWorkers()
    metrics = Metrics()

    def observe(event: events.Event) -> None:
        told.append(event)
        metrics.observe(event)

    node.broker = Broker.open(disk, ROOT, clock=clock, workers=node.workers, observe=observe)
    node.create()
    Consumer(node)
    series = f'goqueue_consumer_group_members{{consumer_group="{GROUP}"}} 1.0'
    assert series in metrics.render(False)[0].decode()

    detach(node)

    assert events.GroupDetached(group=GROUP) in told
    assert series not in metrics.render(False)[0].decode()
    attach(node)
    assert series in metrics.render(False)[0].decode()


def test_all_groups_are_spread_over_all_partitions_and_come_back_after_a_restart(node: Node) -> None:
    node.create()
    names = sorted(f"group-{number}" for number in range(60))
    for name in names:
        Consumer(node, name)
    used = {number for number in range(PARTITION_COUNTS[GROUPS_TOPIC]) if node.journal(GROUPS_TOPIC, number).load()}
    assert used == {partition_of(name, GROUPS_TOPIC) for name in names}
    node.broker.close()

    again = Node(node.disk, node.clock)

    assert again.broker.groups.names() == names
    assert {len(again.broker.groups.describe(name).members) for name in names} == {1}
