"""Simulated machines with the nodes that run on them, and what can be done to them.

A node is what a server runs (`cluster/node.py`). Around it everything is simulated: the event loop has virtual time, a
machine has clocks that may be wrong and a disk that forgets what was not synced, the network loses and delays, the
metadata log is slow, out of reach or leaves outcomes open.

The methods are those of a test: they let time pass (`advance`, `until`), do harm, repair it (`heal`), ask as an
administrator does (`decide`), and look. Whenever time passes, everything is checked (`metadata_checks.py`). What does
not hold ends the run as `SimulationFailed`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from goqueue.clock import SECOND
from goqueue.cluster.controller import ClusterDefaults
from goqueue.cluster.link import CallingNode
from goqueue.cluster.local_copy import LocalCopy, SnapshotPolicy
from goqueue.cluster.messages import (
    AnyAdminAnswer,
    AnyAdminRequest,
    AnyNodeMessage,
    CreateTopic,
    decode_message,
    encode_message,
)
from goqueue.cluster.node import Node, NodeIdentity
from goqueue.cluster.records import BrokerAddresses
from goqueue.cluster.timing import ClusterTiming
from goqueue.errors import AvailabilityError, GoQueueError
from goqueue.runtime.entropy import SeededEntropy
from goqueue.testing.memory_disk import MemoryDisk
from goqueue.testing.metadata_checks import MetadataAuthor, MetadataChecks, ObservedLog
from goqueue.testing.simulated_metadata_log import MetadataFaults, SimulatedEngine, SimulatedMetadataLog
from goqueue.testing.simulated_network import SimulatedNetwork, SimulatedPeers
from goqueue.testing.simulated_process import ProcessLoop, SimulatedProcess
from goqueue.testing.simulated_time import SimulatedTime
from goqueue.testing.simulation_transcript import SimulationFailed, SimulationTranscript

RECOVERY_S: Final = 5.0
"""So long after everything is healed there is one controller, and every partition that can have a leader has one."""
STABLE_S: Final = 4.0
"""So long after that no other controller is elected."""
PEER_PORT: Final = 7001
DIRECTORY: Final = "/data/metadata"
SNAPSHOTS: Final = SnapshotPolicy(entries=16, entries_kept=8)
"""So small that a short run has a few, and nodes that go on from one."""
_TURN_S: Final = 0.1


class SimulatedMachine:
    """What a node runs on: a disk, clocks, and at most one process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, number: int, node_id: int) -> None:
        self.number = number
        self.node_id = node_id
        """The same as `number`, but for a clone."""
        self.host = f"host-{number}"
        self.disk = MemoryDisk()
        self.time = SimulatedTime(loop)
        self.starts = 0
        self.is_log_cut = False
        self.is_wiped = False
        """Whether the disk is another one than before, and an operator says so."""
        self.unproven: dict[str, tuple[int, ...]] | None = {}
        """The replicas whose logs may have lost records; None: all of them."""
        self.process: SimulatedProcess | None = None
        self.log: SimulatedMetadataLog | None = None
        self.peers: SimulatedPeers | None = None
        self.node: Node | None = None
        self.is_ready = False
        """Whether the node has started."""
        self.is_shutting_down = False

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_alive

    @property
    def is_stopped(self) -> bool:
        return self.process is not None and self.process.is_stopped

    @property
    def incarnation(self) -> str:
        return f"{self.number}.{self.starts}"

    @property
    def caller(self) -> CallingNode:
        return CallingNode(self.node_id, self.incarnation)

    def peer_lost(self, node: int, was_refused: bool) -> None:
        """Of the network: a connection of the process broke."""
        if self.node is not None:
            self.node.peer_lost(node, was_refused)


class SimulatedNodes:
    """Nodes 1 to `nodes`. `start` starts them all."""

    # More than 40 methods: one for each thing that a test does to a cluster, or asks about it.

    def __init__(
        self,
        seed: int,
        nodes: int = 3,
        *,
        timing: ClusterTiming | None = None,
        node_type: type[Node] = Node,
    ) -> None:
        self.seed = seed
        self.loop = ProcessLoop()
        self.loop.set_exception_handler(self._unhandled)
        self.entropy = SeededEntropy(seed)
        self.transcript = SimulationTranscript(self.loop, f"seed {seed}, {nodes} nodes")
        self.engine = SimulatedEngine(SeededEntropy(self.entropy.bits(64)))
        self.log_faults = MetadataFaults(delay_s=(0.000_5, 0.003))
        self.checks = MetadataChecks(self.engine, self.transcript)
        self.network = SimulatedNetwork(self.loop, SeededEntropy(self.entropy.bits(64)), self)
        self.machines = {number: SimulatedMachine(self.loop, number, number) for number in range(1, nodes + 1)}
        self.timing = timing or ClusterTiming()
        self.steps: int | None = None  # of `run`
        self.may_halt = False
        """Whether a node may end by itself. What chance does is no reason for that."""
        self.halts: dict[int, str] = {}
        """Why nodes have ended by themselves."""
        self._node_type = node_type
        self._requests = 0
        self._seen_roles: dict[int, tuple[int, bool]] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}

    # --- a run ---------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all nodes."""
        for machine in self.machines.values():
            if machine.process is not None:
                machine.process.kill()
        for task in list(self._tasks):
            task.cancel()
        self.loop.run_until_complete(self._settled())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def start(self, *numbers: int) -> None:
        """Start these nodes, or all."""
        for number in numbers or self.machines:
            self._start(self.machines[number])

    def advance(self, seconds: float) -> None:
        """Let time pass, then check everything. Raises `SimulationFailed`."""
        self.loop.run_until_complete(self.passed(seconds))
        self.check()

    async def passed(self, seconds: float) -> None:
        """Return after so long."""
        await asyncio.sleep(seconds)

    def until(self, holds: Callable[[], bool], within_s: float, what: str) -> float:
        """Let time pass until this holds; returns how long that took. Raises `SimulationFailed`."""
        began = self.loop.time()
        while not holds():
            if self.loop.time() - began >= within_s:
                self.fail(f"not within {within_s} s: {what}")
            self.advance(_TURN_S)
        return self.loop.time() - began

    def recover(self) -> float:
        """Heal everything, then check that the cluster recovers (M7) and stays as it is. Returns how long it took."""
        self.heal()
        began = whole_since = self.loop.time()
        while self.loop.time() - began < RECOVERY_S:
            self.advance(_TURN_S)
            if self.what_is_wrong() is not None:
                whole_since = self.loop.time()
        self._check_is_whole(f"{RECOVERY_S} s after everything was healed")
        self.transcript.note("the cluster is whole")
        epoch = self.epoch
        self.advance(STABLE_S)
        self._check_is_whole("after the cluster had recovered")
        if self.epoch != epoch:
            self.fail(f"M7: another controller was elected after the cluster had recovered, {STABLE_S} s later at most")
        self.checks.check_snapshot(self.engine.load_snapshot())
        self.checks.check_snapshot(self.checks.snapshot_at(self.entropy.bits(32) % (len(self.checks.entries) + 1)))
        self.check()
        return whole_since - began

    def _check_is_whole(self, when: str) -> None:
        reason = self.what_is_wrong()
        if reason is not None:
            self.fail(f"M7: {reason}, {when}")

    def until_whole(self, within_s: float = RECOVERY_S) -> float:
        """Let time pass until there is one controller, and a leader for each partition that can have one (M7)."""
        began = self.loop.time()
        while (reason := self.what_is_wrong()) is not None:
            if self.loop.time() - began >= within_s:
                self.fail(f"M7: {reason}, {within_s} s after everything was healed")
            self.advance(_TURN_S)
        self.transcript.note("the cluster is whole")
        return self.loop.time() - began

    # --- faults --------------------------------------------------------------------------------------

    def kill(self, *numbers: int) -> None:
        """End the processes, as SIGKILL does. What they wrote is in the machine's memory, and so not lost."""
        for machine in self._running(numbers):
            self.transcript.note(f"node {machine.number} is killed")
            self._end(machine)

    def power_off(self, *numbers: int) -> None:
        """Switch off the machines, or all: disks keep what was synced, and a part of the rest."""
        for number in numbers or self.machines:
            machine = self.machines[number]
            self.transcript.note(f"machine {number} loses its power")
            self.network.switch_off(machine.host)
            self._end(machine)
            machine.disk = machine.disk.crash(seed=self.entropy.bits(32))
            machine.unproven = self._unproven(machine.node_id)

    def stop(self, *numbers: int) -> None:
        """Let these processes do nothing until `resume`, as SIGSTOP does."""
        for machine in self._running(numbers):
            assert machine.process is not None
            if not machine.process.is_stopped:
                self.transcript.note(f"node {machine.number} is stopped")
                machine.process.stop()

    def resume(self, *numbers: int) -> None:
        """Let them go on, as SIGCONT does."""
        for machine in self._running(numbers or self.machines):
            assert machine.process is not None
            if machine.process.is_stopped:
                self.transcript.note(f"node {machine.number} goes on")
                machine.process.resume()

    def shut_down(self, number: int) -> None:
        """Stop the node as an administrator does: others lead what it led, then it ends."""
        for machine in self._running((number,)):
            assert machine.process is not None
            if machine.is_ready:
                self.transcript.note(f"node {number} shuts down")
                machine.is_ready, machine.is_shutting_down = False, True
                machine.process.spawn(self._shut_down(machine, machine.process))

    def wipe(self, number: int) -> None:
        """Give the machine an empty disk. Its process must have ended."""
        machine = self.machines[number]
        assert not machine.is_running
        self.transcript.note(f"machine {number} has an empty disk")
        machine.unproven = None
        machine.disk = MemoryDisk()
        machine.is_wiped = True

    def clone(self, number: int) -> int:
        """Another machine with a copy of the disk, as from a backup or an image; returns its number. It has the same
        node id, until it is told otherwise.
        """
        original = self.machines[number]
        clone = SimulatedMachine(self.loop, 100 + number, number)
        for path in original.disk.paths():
            clone.disk.write(path, original.disk.read(path))
        self.machines[clone.number] = clone
        self.transcript.note(f"machine {clone.number} is a clone of {number}")
        return clone.number

    def cut(self, source: int, target: int) -> None:
        """Let nothing arrive that the one node sends to the other."""
        self.transcript.note(f"cut {source} -> {target}")
        self.network.cut(self.machines[source].host, self.machines[target].host)

    def mend(self, source: int, target: int) -> None:
        """End the cut."""
        self.transcript.note(f"mended {source} -> {target}")
        self.network.mend(self.machines[source].host, self.machines[target].host)

    def cut_log(self, *numbers: int) -> None:
        """Put the metadata log out of reach of these nodes, or all."""
        for number in numbers or self.machines:
            machine = self.machines[number]
            self.transcript.note(f"node {number} cannot reach the metadata log")
            machine.is_log_cut = True
            if machine.log is not None:
                machine.log.cut()

    def mend_log(self, *numbers: int) -> None:
        """Let them reach it again."""
        for number in numbers or self.machines:
            machine = self.machines[number]
            if machine.is_log_cut:
                self.transcript.note(f"node {number} reaches the metadata log again")
                machine.is_log_cut = False
                if machine.log is not None:
                    machine.log.heal()

    def set_rate(self, number: int, rate: float) -> None:
        """Let the clocks of the machine run at that rate."""
        self.transcript.note(f"clock of {number} runs at {rate:.2f}")
        self.machines[number].time.set_rate(rate)

    def jump(self, number: int, seconds: float) -> None:
        """Set the wall clock of the machine."""
        self.transcript.note(f"wall clock of {number} jumps by {seconds:.0f} s")
        self.machines[number].time.jump(round(seconds * SECOND))

    def heal(self) -> None:
        """End all faults, and start what does not run."""
        self.transcript.note("everything is healed")
        self.network.heal()
        self.log_faults.answer_lost = self.log_faults.append_late = 0.0
        self.log_faults.delay_s = (0.000_5, 0.003)
        self.mend_log()
        for number, machine in self.machines.items():
            machine.time.set_rate(1.0)
            self.resume(number)
            if machine.is_shutting_down:  # it would end when everything is well
                self.kill(number)
            if not machine.is_running:
                self._start(machine)

    # --- what administrators do ----------------------------------------------------------------------

    def new_request_id(self) -> str:
        self._requests += 1
        return f"r{self._requests}"

    def decide(
        self, request: AnyAdminRequest, *, through: Iterable[int], within_s: float = 10.0
    ) -> "asyncio.Task[AnyAdminAnswer | GoQueueError | None]":
        """Ask for this through one node after the other, until one says what became of it; None if none did."""
        return self._spawn(self._decide(request, list(through), within_s))

    def create_topic(self, name: str, *, partitions: int = 2, replication_factor: int = 3) -> AnyAdminAnswer:
        """Create the topic. Fails the run if it cannot be done."""
        request = CreateTopic(self.new_request_id(), name, partitions, min(replication_factor, len(self.machines)))
        answer = self.loop.run_until_complete(self.decide(request, through=list(self.machines)))
        self.check()
        if answer is None or isinstance(answer, Exception):
            self.fail(f"topic {name} could not be created: {answer}")
        return answer

    def ask_controller(self, caller: CallingNode, message: AnyNodeMessage) -> AnyNodeMessage:
        """What the controller answers to this process, whatever the network does."""
        number = self.controller
        assert number is not None
        machine = self.machines[number]
        assert machine.process is not None
        assert machine.node is not None
        request = encode_message(message)
        answer = self.loop.run_until_complete(machine.process.spawn(machine.node.answer(caller, request)))
        self.answered(caller, number, request, answer)
        self.check()
        return decode_message(answer)

    async def _decide(
        self, request: AnyAdminRequest, through: list[int], within_s: float
    ) -> AnyAdminAnswer | GoQueueError | None:
        deadline = self.loop.time() + within_s
        while self.loop.time() < deadline:
            for number in through:
                machine = self.machines[number]
                if not machine.is_ready or machine.process is None or machine.node is None:
                    continue
                node = machine.node
                asked = machine.process.spawn(self._asked(node, request))
                await asyncio.wait((asked,), timeout=deadline - self.loop.time())
                if not asked.done():
                    asked.cancel()
                elif not asked.cancelled():
                    answer = asked.result()
                    if isinstance(answer, Exception):
                        self.transcript.note(f"{summary(request)} through {number}: refused, {answer}")
                        self.checks.refused(request)
                        return answer
                    if answer is not None:
                        self.transcript.note(f"{summary(request)} through {number}: done")
                        self.checks.follow()
                        self.checks.carried_out(request, answer, node.metadata)
                        return answer
            await asyncio.sleep(0.05)
        self.transcript.note(f"{summary(request)}: nobody knows")
        return None

    async def _asked(self, node: Node, request: AnyAdminRequest) -> AnyAdminAnswer | GoQueueError | None:
        try:
            return await node.decide(request)
        except AvailabilityError:
            return None
        except GoQueueError as error:
            return error

    # --- what can be seen ----------------------------------------------------------------------------

    @property
    def controller(self) -> int | None:
        """The node that is the controller of the newest epoch and acts as one, if it runs."""
        machine = self.machines.get(self.checks.state.controller or 0)
        if machine is None or not machine.is_running or machine.node is None or machine.node.controller is None:
            return None
        return machine.number

    @property
    def epoch(self) -> int:
        return self.checks.state.epoch

    def running(self) -> list[int]:
        """The nodes whose process lives."""
        return [number for number, machine in self.machines.items() if machine.is_running]

    def node(self, number: int) -> Node:
        """The node; it must have been started."""
        node = self.machines[number].node
        assert node is not None
        return node

    def what_is_wrong(self) -> str | None:
        """Why the cluster is not whole; None if it is."""
        state = self.checks.state
        running = self.running()
        if not running:
            return "no node runs"
        if self.controller is None:
            return f"node {state.controller} is controller in the log of epoch {state.epoch}, but does not act"
        for number in running:
            node = self.machines[number].node
            if node is None or not self.machines[number].is_ready:
                return f"node {number} has not started"
            if node.controller is not None and number != self.controller:
                return f"node {number} believes that it is controller too"
            if node.metadata.position != state.position:
                return f"node {number} has applied {node.metadata.position.index} of {state.position.index}"
            broker = state.broker(number)
            if broker is None or broker.registration.incarnation != self.machines[number].incarnation:
                return f"node {number} is not registered"
            if not broker.is_online:
                return f"node {number} is {broker.status}"
        for partition in state.partitions.values():
            alive = [node for node in (*partition.isr, *partition.elr) if node in running]
            if alive and partition.leader not in running:
                return f"partition {partition.key} is led by {partition.leader}, and {alive} could lead it"
        return None

    def check(self) -> None:
        """Check everything now. Raises `SimulationFailed`."""
        self.checks.follow()
        for number, machine in self.machines.items():
            if machine.process is not None and machine.process.errors:
                self.checks.broken.append(f"node {number}: {machine.process.errors!r}")
            if machine.is_running and machine.node is not None:
                self.checks.check_node(number, machine.node.metadata)
                self._note_role(number, machine.node)
        if self.checks.broken:
            self.fail()

    def fail(self, *broken: str) -> NoReturn:
        """End the run. Raises `SimulationFailed`."""
        for sentence in broken:
            self.transcript.note(f"BROKEN {sentence}")
        raise SimulationFailed(
            self.seed, len(self.machines), self.steps, [*self.checks.broken, *broken], self.transcript.text
        )

    def requested(self, caller: CallingNode, node: int, request: bytes) -> None:
        """Of the network: a request arrives."""
        self.transcript.absorb("request", caller.node, node, request)

    def answered(self, caller: CallingNode, node: int, request: bytes, answer: bytes) -> None:
        """Of the network: a node answers."""
        self.transcript.absorb("answer", caller.node, node, answer)
        self.checks.follow()
        self.checks.answered(caller, request, answer)

    def _unproven(self, node: int) -> dict[str, tuple[int, ...]] | None:
        """The replicas of which a crash has taken something: none, one, or all."""
        match self.entropy.bits(2):
            case 0:
                return None
            case 1:
                keys = sorted(self.checks.state.replicas_on(node))[:1]
                return {topic_id: (partition,) for topic_id, partition in keys}
            case _:
                return {}

    # --- processes -----------------------------------------------------------------------------------

    def _running(self, numbers: Iterable[int]) -> list[SimulatedMachine]:
        return [self.machines[number] for number in numbers if self.machines[number].is_running]

    def _start(self, machine: SimulatedMachine) -> None:
        assert not machine.is_running
        machine.starts += 1
        self.transcript.note(f"node {machine.number} starts as {machine.incarnation}")
        self.network.switch_on(machine.host)
        machine.process = SimulatedProcess(self.loop, machine.incarnation)
        machine.is_ready = machine.is_shutting_down = False
        machine.node = None
        machine.process.spawn(self._run_node(machine, machine.process))

    def _end(self, machine: SimulatedMachine) -> None:
        if machine.process is not None:
            machine.process.kill()
        machine.is_ready = machine.is_shutting_down = False
        machine.node = None
        machine.log = None
        machine.peers = None

    async def _run_node(self, machine: SimulatedMachine, process: SimulatedProcess) -> None:
        """What a server does with a node."""
        author = MetadataAuthor(machine.node_id, machine.incarnation, process)
        entropy = SeededEntropy(self.entropy.bits(64))
        log = machine.log = self.engine.connect(machine.node_id)
        log.faults = self.log_faults
        if machine.is_log_cut:
            log.cut()
        caller = machine.caller
        peers = machine.peers = self.network.connect(machine.host, caller, process, machine.time, machine.peer_lost)
        error: GoQueueError
        try:
            copy = LocalCopy.open(machine.disk, DIRECTORY, node=machine.node_id, entropy=entropy, policy=SNAPSHOTS)
            node = self._node_type(
                NodeIdentity(
                    node=machine.node_id,
                    incarnation=machine.incarnation,
                    addresses=BrokerAddresses(client=f"{machine.host}:7000", peer=f"{machine.host}:{PEER_PORT}"),
                    version="1",
                ),
                ObservedLog(log, author, self.checks),
                peers,
                copy,
                time=machine.time,
                entropy=entropy,
                timing=self.timing,
                defaults=ClusterDefaults(partitions=2, replication_factor=min(3, len(self.machines))),
                unproven=lambda: machine.unproven,
                is_disk_replaced=machine.is_wiped,
            )
            machine.node = node
            author.applied = node.metadata
            self.network.listen((machine.host, PEER_PORT), caller, process, node.answer)
            await node.start()
            machine.is_ready = True
            self.transcript.note(f"node {machine.number} has started")
            error = await node.halted
        except GoQueueError as refused:
            error = refused
        if process.is_alive:
            self.transcript.note(f"node {machine.number} halts: {error}")
            self.halts[machine.number] = str(error)
            if not self.may_halt:
                self.checks.broken.append(f"node {machine.number} halts: {error}")
            self._end(machine)

    async def _shut_down(self, machine: SimulatedMachine, process: SimulatedProcess) -> None:
        assert machine.node is not None
        with suppress(GoQueueError):
            await machine.node.stop(controlled=True)
        if process.is_alive:
            self.transcript.note(f"node {machine.number} has shut down")
            self._end(machine)

    def _note_role(self, number: int, node: Node) -> None:
        role = (node.metadata.epoch, node.controller is not None)
        if role != self._seen_roles.get(number) and role[1]:
            self.transcript.note(f"node {number} acts as controller of epoch {role[0]}")
        self._seen_roles[number] = role

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = self.loop.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(lambda task: self._tasks.pop(task, None))
        return task

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, asyncio.CancelledError):
            self.checks.broken.append(f"unhandled: {context.get('message')}: {error!r}")

    async def _settled(self) -> None:
        """Give what was cancelled the time to end."""
        for _ in range(100):
            await asyncio.sleep(0)


def summary(request: AnyAdminRequest) -> str:
    """The request in a few words."""
    name = getattr(request, "name", "")
    return f"{type(request).__name__} {getattr(request, 'request_id', '')} {name}".strip()
