"""What happens to a simulated cluster by chance: requests of administrators, changes of the ISR, and faults.

Each step draws one action and then a time until the next. A fault that lasts has its end drawn at once, so many are
under way together; an action that has nobody to happen to is left out. The weights are such that in a run of a few
seconds most actions occur, and that a majority of nodes is often well: a cluster that is always down hides its bugs.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, TypeVar

from goqueue.cluster.messages import (
    AlterPartitions,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    IsrChange,
    IsrMember,
    TakeProducerIds,
    encode_message,
)
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.records import PartitionChanged
from goqueue.errors import GoQueueError
from goqueue.testing.simulated_nodes import PEER_PORT, SimulatedNodes

T = TypeVar("T")

PAUSE_S: Final = (0.02, 0.6)
"""Between two steps."""
QUIET: Final = 0.05
QUIET_S: Final = (1.0, 4.0)
"""In which a cluster may recover, so that the next fault finds it at work."""
TOPICS_MAX: Final = 6


class SimulatedChaos:
    """Chance, for one cluster."""

    # More than 40 methods: a method for each fault and each operation that chance may choose, in a few lines each.

    def __init__(self, cluster: SimulatedNodes) -> None:
        self.cluster = cluster
        self.random = Random(cluster.entropy.bits(64))
        self._ends: dict[asyncio.TimerHandle, None] = {}
        self._topics = 0
        self._actions: tuple[tuple[int, Callable[[], None]], ...] = (
            (8, self.create_topic),
            (3, self.alter_topic),
            (3, self.delete_topic),
            (3, self.take_producer_ids),
            (1, self.elect_leaders),
            (14, self.change_isr),
            (6, self.kill_controller),
            (4, self.kill),
            (2, self.power_off),
            (1, self.power_off_all),
            (4, self.stop_controller),
            (3, self.stop),
            (3, self.shut_down),
            (1, self.wipe),
            (4, self.cut_one_way),
            (2, self.cut_both_ways),
            (2, self.cut_off),
            (2, self.reset),
            (2, self.lose_messages),
            (3, self.cut_log),
            (1, self.cut_log_of_all),
            (2, self.slow_log),
            (4, self.doubt),
            (2, self.wrong_rate),
            (2, self.jump),
        )

    def step(self) -> None:
        """Let one thing happen, and some time pass."""
        weights = [weight for weight, _ in self._actions]
        ((_, action),) = self.random.choices(self._actions, weights)
        action()
        self.cluster.advance(self._between(*(QUIET_S if self._chance(QUIET) else PAUSE_S)))

    def end(self) -> None:
        """No fault that is under way ends by itself any more: `heal` ends them all."""
        for end in list(self._ends):
            end.cancel()

    # --- administrators and leaders ------------------------------------------------------------------

    def create_topic(self) -> None:
        state = self.cluster.checks.state
        if len(state.topics) >= TOPICS_MAX:
            return
        self._topics += 1
        nodes = max(len(state.brokers), 1)
        name = f"topic-{self._topics}" if self._chance(0.9) else "topic-1"
        self._decide(
            CreateTopic(
                self.cluster.new_request_id(),
                name,
                partitions=self.random.randint(1, 3),
                replication_factor=min(self.random.choice((1, 2, 3, 3)), nodes),
            )
        )

    def alter_topic(self) -> None:
        if name := self._topic():
            retention = self.random.choice((None, "1h", "7d"))
            self._decide(AlterTopic(self.cluster.new_request_id(), name, {"retention": retention}))

    def delete_topic(self) -> None:
        if name := self._topic():
            self._decide(DeleteTopic(self.cluster.new_request_id(), name))

    def take_producer_ids(self) -> None:
        self._decide(TakeProducerIds(self.random.choice(list(self.cluster.machines))))

    def elect_leaders(self) -> None:
        self._decide(ElectLeaders(self.cluster.new_request_id(), is_unclean=self._chance(0.3)))

    def change_isr(self) -> None:
        """A leader lets a replica into the ISR or out of it, as far as it knows."""
        state = self.cluster.checks.state
        leading = [number for number in self._ready_nodes() if state.leader_count(number)]
        number = self._one_of(leading if self._chance(0.8) else self._ready_nodes())
        if number is None:
            return
        applied = self.cluster.node(number).metadata
        wanted = [self._isr_change(applied, applied.partitions[key]) for key in applied.led_by(number)]
        changes = [change for change in wanted if change is not None and self._chance(0.5)]
        broker = applied.broker(number)
        if not changes or broker is None or applied.controller is None:
            return
        request = AlterPartitions(applied.epoch, number, broker.broker_epoch, tuple(changes))
        if broker.registration.incarnation == self.cluster.machines[number].incarnation:
            self._send(number, applied.controller, encode_message(request))

    def _isr_change(self, applied: Metadata, partition: PartitionChanged) -> IsrChange | None:
        followers = [node for node in partition.replicas if node != partition.leader]
        if not followers:
            return None
        node = self.random.choice(followers)
        isr = set(partition.isr) ^ {node}
        members = []
        for member in sorted(isr):
            broker = applied.broker(member)
            if broker is None:
                return None
            members.append(IsrMember(member, broker.broker_epoch, broker.registration.directories[0]))
        return IsrChange(
            partition.topic_id, partition.partition, partition.leader_epoch, partition.partition_epoch, tuple(members)
        )

    def _send(self, number: int, controller: int, request: bytes) -> None:
        machine = self.cluster.machines[number]
        process = machine.process
        assert process is not None

        async def send() -> None:
            node = machine.node
            assert node is not None
            try:
                if controller == number:
                    self.cluster.answered(machine.caller, number, request, await node.answer(machine.caller, request))
                elif machine.peers is not None:
                    await machine.peers.call(controller, request, timeout_s=1.0)
            except GoQueueError:
                return

        process.spawn(send())

    def _decide(self, request: "CreateTopic | AlterTopic | DeleteTopic | TakeProducerIds | ElectLeaders") -> None:
        through = list(self.cluster.machines)
        self.random.shuffle(through)
        self.cluster.decide(request, through=through, within_s=15.0)

    # --- faults --------------------------------------------------------------------------------------

    def kill_controller(self) -> None:
        controller = self.cluster.controller
        if controller is not None:
            self.cluster.kill(controller)
            self._restart(controller, 0.01, 4.0)

    def kill(self) -> None:
        number = self._node()
        if number is not None:
            self.cluster.kill(number)
            self._restart(number, 0.01, 4.0)

    def power_off(self) -> None:
        number = self._node()
        if number is not None:
            self.cluster.power_off(number)
            self._restart(number, 0.5, 5.0)

    def power_off_all(self) -> None:
        self.cluster.power_off()
        for number in self.cluster.machines:
            self._restart(number, 0.1, 3.0)

    def stop_controller(self) -> None:
        controller = self.cluster.controller
        if controller is not None:
            self._stop(controller)

    def stop(self) -> None:
        number = self._node()
        if number is not None:
            self._stop(number)

    def _stop(self, number: int) -> None:
        self.cluster.stop(number)
        seconds = self._between(0.05, 1.0) if self._chance(0.5) else self._between(1.0, 5.0)
        self._later(seconds, lambda: self.cluster.resume(number))

    def shut_down(self) -> None:
        number = self._one_of(self._ready_nodes())
        if number is not None:
            self.cluster.shut_down(number)
            self._later(self._between(1.0, 4.0), lambda: self.cluster.kill(number))
            self._restart(number, 4.0, 6.0)

    def wipe(self) -> None:
        number = self._node()
        if number is not None:
            self.cluster.power_off(number)
            self.cluster.wipe(number)
            self._restart(number, 0.5, 3.0)

    def cut_one_way(self) -> None:
        source, target = self._pair()
        self._cut(source, target)

    def cut_both_ways(self) -> None:
        one, other = self._pair()
        self._cut(one, other)
        self._cut(other, one)

    def cut_off(self) -> None:
        """A node is cut off from all others, in one direction or both, but not from the metadata log."""
        number = self.random.choice(list(self.cluster.machines))
        directions = self.random.choice((1, 2, 3))
        for other in self.cluster.machines:
            if other != number:
                if directions & 1:
                    self._cut(number, other)
                if directions & 2:
                    self._cut(other, number)

    def _cut(self, source: int, target: int) -> None:
        if source != target:
            self.cluster.cut(source, target)
            self._later(self._between(0.2, 4.0), lambda: self.cluster.mend(source, target))

    def reset(self) -> None:
        number = self._node()
        if number is not None:
            machine = self.cluster.machines[number]
            self.cluster.transcript.note(f"connections to {number} are reset")
            self.cluster.network.reset((machine.host, PEER_PORT))

    def lose_messages(self) -> None:
        faults = self.cluster.network.faults
        faults.loss, faults.duplicate = self._between(0.0, 0.2), self._between(0.0, 0.2)
        faults.late = self._between(0.0, 0.2)
        self.cluster.transcript.note(
            f"messages: {faults.loss:.2f} lost, {faults.duplicate:.2f} twice, {faults.late:.2f} late"
        )

        def end() -> None:
            faults.loss = faults.duplicate = faults.late = 0.0
            self.cluster.transcript.note("messages: all arrive")

        self._later(self._between(0.5, 4.0), end)

    def cut_log(self) -> None:
        number = self.random.choice(list(self.cluster.machines))
        self.cluster.cut_log(number)
        self._later(self._between(0.2, 5.0), lambda: self.cluster.mend_log(number))

    def cut_log_of_all(self) -> None:
        self.cluster.cut_log()
        self._later(self._between(0.2, 5.0), self.cluster.mend_log)

    def slow_log(self) -> None:
        faults = self.cluster.log_faults
        faults.delay_s = (0.0, self._between(0.05, 0.8))
        self.cluster.transcript.note(f"the metadata log takes up to {faults.delay_s[1]:.2f} s each way")

        def end() -> None:
            faults.delay_s = (0.000_5, 0.003)

        self._later(self._between(0.5, 4.0), end)

    def doubt(self) -> None:
        """Appends whose author does not hear what becomes of them."""
        faults = self.cluster.log_faults
        faults.answer_lost, faults.append_late = self.random.choice(((0.3, 0.0), (0.0, 0.3), (0.3, 0.3)))
        faults.late_s = (0.0, 1.5)
        self.cluster.transcript.note(f"appends: {faults.answer_lost} unanswered, {faults.append_late} late")

        def end() -> None:
            faults.answer_lost = faults.append_late = 0.0

        self._later(self._between(0.5, 4.0), end)

    def wrong_rate(self) -> None:
        number = self.random.choice(list(self.cluster.machines))
        self.cluster.set_rate(number, self._between(0.5, 2.0))
        self._later(self._between(1.0, 8.0), lambda: self.cluster.set_rate(number, 1.0))

    def jump(self) -> None:
        number = self.random.choice(list(self.cluster.machines))
        self.cluster.jump(number, self.random.choice((-86_400, -3_600, -5, 5, 3_600, 86_400)))

    # --- chance --------------------------------------------------------------------------------------

    def _restart(self, number: int, low: float, high: float) -> None:
        def restart() -> None:
            if not self.cluster.machines[number].is_running:
                self.cluster.start(number)

        self._later(self._between(low, high), restart)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        def act() -> None:
            self._ends.pop(handle)
            action()

        handle = self.cluster.loop.call_later(seconds, act)
        self._ends[handle] = None

    def _node(self) -> int | None:
        return self._one_of(self.cluster.running())

    def _ready_nodes(self) -> list[int]:
        return [number for number in self.cluster.running() if self.cluster.machines[number].is_ready]

    def _topic(self) -> str | None:
        names = sorted(topic.name for topic in self.cluster.checks.state.topics.values())
        return self._one_of(names)

    def _pair(self) -> tuple[int, int]:
        numbers = list(self.cluster.machines)
        if len(numbers) == 1:
            return numbers[0], numbers[0]
        one, other = self.random.sample(numbers, 2)
        return one, other

    def _one_of(self, choices: Sequence[T]) -> T | None:
        return self.random.choice(choices) if choices else None

    def _chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def _between(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)
