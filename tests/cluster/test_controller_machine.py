"""Registrations, deaths, ISR changes, topics, shutdowns and lost controllers, in any order, leave a right cluster.

Checked after each step: nothing that the controller decides contradicts the state, on its copy and on a node; copy,
snapshot and replay agree (M4); one leader per leader epoch (P1); a partition that could have a leader has one; only
processes that are registered, with their disks, join an ISR (P7, P9).

And the reason for all the rules about ISR and ELR: no replica that may lack a committed record is in one of them, or
leads, unless an operator says so (P8). The machine keeps the set of those that may: all that were not in sync while
enough others were, and those whose disk was replaced, or whose log is not proven after a crash.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from goqueue.clock import MS
from goqueue.cluster.messages import (
    AlterPartitions,
    AlterTopic,
    ControlledShutdown,
    CreateTopic,
    Decide,
    DeleteTopic,
    Done,
    ElectLeaders,
    Heartbeat,
    IsrMember,
    Registered,
    RemoveNode,
)
from goqueue.cluster.metadata import min_insync
from goqueue.cluster.records import (
    BrokerStatus,
    PartitionChanged,
    PartitionKey,
    TopicAdded,
    TopicAltered,
    TopicRemoved,
)
from tests.cluster.controlled import SESSION, ControlledCluster
from tests.cluster.mutations import ORIGINAL, Modules

NODES = (1, 2, 3, 4, 5)
node = st.sampled_from(NODES)


@dataclass
class BrokerProcess:
    """A process as it sees itself."""

    incarnation: str
    broker_epoch: int = 0
    may_stop: bool = False


class ControllerMachine(RuleBasedStateMachine):
    modules: Modules = ORIGINAL

    def __init__(self) -> None:
        super().__init__()
        self.cluster = ControlledCluster(self.modules)
        self.processes: dict[int, BrokerProcess] = {}
        self.started = 0
        self.disks = {number: f"disk-{number}" for number in NODES}
        self.clean: dict[int, int] = {}  # the epoch under which a node was stopped cleanly
        self.leaders: dict[tuple[PartitionKey, int], int | None] = {}
        self.before: dict[PartitionKey, PartitionChanged] = {}
        self.behind: set[tuple[PartitionKey, int]] = set()  # replicas that may lack records that were committed
        self.settings: dict[str, dict[str, Any]] = {}
        self.checked = 0

    @initialize(brokers=st.integers(1, 5))
    def form(self, brokers: int) -> None:
        for number in range(1, brokers + 1):
            self.start(number, replaced=False, is_proven=True)
            self.heartbeat(number)
        self.create("a", partitions=4, replicas=min(3, brokers), least=3)

    def one_of(self, data: st.DataObject, numbers: Iterable[int]) -> int | None:
        choice = sorted(numbers)
        return data.draw(st.sampled_from(choice)) if choice else None

    # Processes

    @rule(data=st.data(), replaced=st.sampled_from([False, False, True]), is_proven=st.booleans())
    def come_back(self, data: st.DataObject, replaced: bool, is_proven: bool) -> None:
        number = self.one_of(data, set(NODES) - self.processes.keys())
        if number is not None:
            self.start(number, replaced=replaced, is_proven=is_proven)
            self.heartbeat(number)

    @rule(number=node, replaced=st.booleans(), is_proven=st.booleans())
    def start(self, number: int, replaced: bool, is_proven: bool) -> None:
        if number in self.processes:
            return
        self.started += 1
        process = BrokerProcess(f"{number}{'a' if number == self.cluster.metadata.controller else self.started}")
        if replaced:
            self.disks[number] = f"disk-{number}-{self.started}"
        before = self.cluster.metadata.broker(number)
        clean = None if replaced else self.clean.pop(number, None)
        answer = self.cluster.ask(
            self.cluster.registration(
                number,
                directories=(self.disks[number],),
                incarnation=process.incarnation,
                unproven={} if is_proven else None,
                last_clean_epoch=clean,
                is_disk_replaced=replaced,
                rack="ab"[number % 2],
            )
        )
        if isinstance(answer, Registered):
            process.broker_epoch = answer.broker_epoch
            self.processes[number] = process
            is_clean = before is not None and clean == before.broker_epoch
            for key in self.cluster.metadata.replicas_on(number):
                is_alone = len(self.cluster.metadata.partitions[key].replicas) == 1
                if replaced or not (is_clean or is_proven or is_alone):
                    self.behind.add((key, number))

    @rule(number=node)
    def heartbeat(self, number: int) -> None:
        process = self.processes.get(number)
        if process is not None:
            index = len(self.cluster.history.entries)
            self.cluster.ask(Heartbeat(0, number, process.broker_epoch, index, process.may_stop))

    @rule(data=st.data(), was_refused=st.booleans())
    def kill(self, data: st.DataObject, was_refused: bool) -> None:
        number = self.one_of(data, self.processes.keys() - {self.cluster.metadata.controller})
        if number is not None:
            del self.processes[number]
            self.cluster.lose(number, was_refused=was_refused)

    @rule(data=st.data())
    def kill_the_controller(self, data: st.DataObject) -> None:
        dead = self.cluster.metadata.controller
        successor = self.one_of(data, self.processes.keys() - {dead})
        if successor is not None:
            self.processes.pop(dead, None)
            self.cluster.elect(successor)
            self.cluster.lose(dead)

    @rule(data=st.data())
    def shut_down(self, data: st.DataObject) -> None:
        number = self.one_of(data, self.processes)
        if number is not None:
            process = self.processes[number]
            answer = self.cluster.ask(ControlledShutdown(0, number, process.broker_epoch))
            if getattr(answer, "may_stop", False) and number != self.cluster.metadata.controller:
                self.clean[number] = process.broker_epoch
                del self.processes[number]

    @rule(steps=st.integers(1, 20), hung=st.sets(node, max_size=2))
    def time_goes_on(self, steps: int, hung: set[int]) -> None:
        for _ in range(steps):
            self.cluster.now_ns += 150 * MS
            for number in sorted(self.processes.keys() - hung):
                self.heartbeat(number)
            self.cluster.tick()

    @rule(number=node)
    def lose_the_controller(self, number: int) -> None:
        if number in self.processes:
            self.cluster.elect(number)

    @rule()
    def hold_the_log(self) -> None:
        """Several requests are decided while an entry is in flight."""
        cluster = self.cluster
        entry = None
        for number in sorted(self.processes):
            cluster.controller.handle(
                Decide(0, CreateTopic(f"held-{self.started}-{number}", f"held-{number}", 2, 1)), cluster.now
            )
            cluster.controller.connection_lost(number, True, cluster.now)
            if entry is None:
                entry = cluster.controller.next_entry((len(cluster.history.entries) + 1).to_bytes(16, "big"))
        if entry is not None:
            assert cluster.history.take(entry)
            cluster.controller.applied(entry)
        cluster.write()

    # Partitions

    @rule(keep=st.integers(1, 2))
    def followers_are_slow(self, keep: int) -> None:
        """They leave the ISR of all partitions, one after another."""
        for partition in list(self.cluster.metadata.partitions.values()):
            leader, isr = partition.leader, partition.isr
            while leader in self.processes and len(isr) > keep:
                slow = next(number for number in reversed(isr) if number != leader)
                isr = tuple(number for number in isr if number != slow)
                change = self.cluster.isr_change(partition.topic_id, *isr, number=partition.partition)
                self.cluster.ask(AlterPartitions(0, leader, self.processes[leader].broker_epoch, (change,)))

    @rule(data=st.data())
    def change_the_isr(self, data: st.DataObject) -> None:
        led = [
            partition for partition in self.cluster.metadata.partitions.values() if partition.leader in self.processes
        ]
        if not led:
            return
        partition = data.draw(st.sampled_from(led))
        members = data.draw(st.sets(st.sampled_from(partition.replicas))) | {partition.leader}
        epochs = data.draw(st.sampled_from([0, 0, 0, -1]))
        asked = []
        for number in sorted(members):
            broker = self.cluster.metadata.broker(number)
            stale = data.draw(st.sampled_from([0, 0, 0, 1]))
            asked.append(IsrMember(number, broker.broker_epoch - stale, broker.registration.directories[0]))
        change = self.cluster.isr_change(
            partition.topic_id,
            number=partition.partition,
            isr=tuple(asked),
            partition_epoch=max(0, partition.partition_epoch + epochs),
        )
        epoch = self.processes[partition.leader].broker_epoch
        answer = self.cluster.ask(AlterPartitions(0, partition.leader, epoch, (change,)))
        if change.partition_epoch != partition.partition_epoch or any(
            member.broker_epoch != self.cluster.epoch_of(member.node) for member in asked
        ):
            assert answer.results[0].refusal is not None

    @rule(
        name=st.sampled_from("abc"), partitions=st.integers(1, 4), replicas=st.integers(1, 3), least=st.integers(1, 3)
    )
    def create(self, name: str, partitions: int, replicas: int, least: int) -> None:
        chosen = {"min_insync_replicas": least} if least < 3 else {}
        self.decide(CreateTopic, name=name, partitions=partitions, replication_factor=replicas, settings=chosen)

    @rule(name=st.sampled_from("abc"), least=st.sampled_from([None, 1, 2, 3]))
    def alter(self, name: str, least: int | None) -> None:
        self.decide(AlterTopic, name=name, changes={"min_insync_replicas": least})

    @rule(name=st.sampled_from("abc"))
    def delete(self, name: str) -> None:
        self.decide(DeleteTopic, name=name)

    @rule(is_unclean=st.booleans())
    def elect_leaders(self, is_unclean: bool) -> None:
        self.decide(ElectLeaders, is_unclean=is_unclean)

    @precondition(lambda self: len(self.processes) > 2)
    @rule(number=node)
    def remove(self, number: int) -> None:
        if number != self.cluster.metadata.controller:
            self.decide(RemoveNode, node=number)
            if self.cluster.metadata.broker(number) is None:
                self.processes.pop(number, None)

    def decide(self, kind: Any, **fields: Any) -> None:
        self.started += 1
        request = Decide(0, kind(request_id=f"m{self.started}", **fields))
        answer = self.cluster.ask(request)
        if isinstance(answer, Done):
            assert self.cluster.ask(request).answer == answer.answer

    # What holds

    @invariant()
    def every_record_is_right(self) -> None:
        """Follow the log as a checker that knows no controller."""
        decode = self.modules.metadata.decode_batch
        for entry in self.cluster.history.entries[self.checked :]:
            for record in decode(entry.batch):
                match record:
                    case PartitionChanged():
                        self._check_partition(record)
                    case TopicAdded(id=id, settings=chosen) | TopicAltered(id=id, settings=chosen):
                        self.settings[id] = chosen
                    case TopicRemoved(id=id):
                        self.before = {key: found for key, found in self.before.items() if key[0] != id}
            self._commit()
        self.checked = len(self.cluster.history.entries)

    def _check_partition(self, after: PartitionChanged) -> None:
        key, before = after.key, self.before.get(after.key)
        self.before[key] = after
        known = self.leaders.setdefault((key, after.leader_epoch), after.leader)
        assert known == after.leader, "two leaders in one epoch (P1)"
        if after.is_unclean:
            self.behind |= {(key, number) for number in after.replicas}
            self.behind.discard((key, after.leader))
        elif before is not None and before.leader == after.leader:
            for number in set(after.isr) - set(before.isr):
                self.behind.discard((key, number))  # the leader says so

    def _commit(self) -> None:
        """Whatever can commit after this entry does."""
        for key, partition in self.before.items():
            least = min_insync(self.settings[key[0]], len(partition.replicas))
            if partition.leader is not None and len(partition.isr) >= least:
                self.behind |= {(key, number) for number in partition.replicas if number not in partition.isr}

    @invariant()
    def who_is_behind_is_no_candidate(self) -> None:
        for key, partition in self.cluster.metadata.partitions.items():
            for number in (*partition.isr, *partition.elr):
                assert (key, number) not in self.behind, f"{number} may lack committed records of {partition}"

    @invariant()
    def whoever_can_lead_does(self) -> None:
        metadata = self.cluster.metadata
        for partition in metadata.partitions.values():
            candidates = [*partition.isr, *partition.elr]
            able = [number for number in candidates if metadata.broker(number).status is not BrokerStatus.FENCED]
            if partition.leader is None:
                assert not [number for number in able if metadata.broker(number).is_online], "it could have a leader"
                assert not partition.isr
            else:
                assert partition.leader in partition.isr
                assert not metadata.broker(partition.leader).is_fenced

    @invariant()
    def copies_agree(self) -> None:
        metadata = self.cluster.metadata
        state = metadata.encode()
        assert self.cluster.controller.state.encode() == state
        assert self.cluster.history.replayed().encode() == state
        assert self.modules.metadata.Metadata.decode(state).encode() == state

    def teardown(self) -> None:
        """All brokers live again, and are in sync: then preferred leaders lead."""
        if self.cluster.metadata.controller not in self.processes:
            self.start(self.cluster.metadata.controller, replaced=False, is_proven=True)
        self.cluster.now_ns += 2 * SESSION
        self.cluster.elect(self.cluster.metadata.controller)
        for number in NODES:
            self.start(number, replaced=False, is_proven=True)
        self.time_goes_on(4, set())
        metadata = self.cluster.metadata
        for partition in list(metadata.partitions.values()):
            if partition.leader is not None:
                online = [number for number in partition.replicas if metadata.broker(number).is_online]
                changed = self.cluster.isr_change(
                    partition.topic_id, *dict.fromkeys([*online, *partition.isr]), number=partition.partition
                )
                self.cluster.alter(partition.leader, changed)
        self.time_goes_on(2, set())
        for partition in metadata.partitions.values():
            preferred = metadata.broker(partition.replicas[0])
            if preferred.is_online and not preferred.is_leaving and partition.replicas[0] in partition.isr:
                assert partition.leader == partition.replicas[0]
        self.every_record_is_right()
        self.who_is_behind_is_no_candidate()
        self.whoever_can_lead_does()


def run_machine(modules: Modules, *, examples: int, phases: Sequence[Phase] = tuple(Phase)) -> None:
    machine = type("Machine", (ControllerMachine,), {"modules": modules})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=30, deadline=None, phases=phases, derandomize=True, database=None
        ),
    )


def test_any_history_leaves_a_cluster_that_is_right(modules: Modules) -> None:
    run_machine(modules, examples=60)
