"""A controller with its log: what it decides is written and applied at once, unless a test holds it back."""

from typing import Any

from goqueue.clock import MS, SECOND
from goqueue.cluster.messages import (
    AdminRequest,
    AlterPartitions,
    ControlledShutdown,
    CreateTopic,
    Decide,
    DecisionFailed,
    Done,
    Heartbeat,
    HeartbeatReply,
    IsrChange,
    IsrMember,
    IsrResult,
    PartitionsAltered,
    Refused,
    Register,
    Registered,
    ShutdownProgress,
)
from goqueue.cluster.records import BrokerAddresses, PartitionChanged, Record
from goqueue.cluster.timing import ClusterTiming, Now
from goqueue.errors import GoQueueError
from goqueue.runtime.entropy import SeededEntropy
from goqueue.wire.codes import restore
from tests.cluster.history import formed
from tests.cluster.mutations import ORIGINAL, Modules

TIMING = ClusterTiming()
HEARTBEAT, SESSION = TIMING.heartbeat_ns, TIMING.session_ns


class ControlledCluster:
    """A cluster whose brokers are messages; node 1 is the controller, unless another one is elected."""

    def __init__(self, modules: Modules = ORIGINAL, *, nodes: int = 0, **defaults: int) -> None:
        self.history = formed(modules)
        self.now_ns = 100 * SECOND
        self._defaults = modules.controller.ClusterDefaults(**defaults)
        self._entropy = SeededEntropy(1)
        self._request_count = 0
        self.registered: dict[int, Register] = {}
        self.elect(1, append=False)
        for node in range(1, nodes + 1):
            self.join(node)

    @property
    def metadata(self) -> Any:
        return self.history.metadata

    @property
    def now(self) -> Now:
        return Now(self.now_ns, self.now_ns * 7)

    def elect(self, node: int, *, append: bool = True) -> None:
        """Another controller begins; nothing is left of the one before but the log."""
        if append:
            self.controller.deposed()
            self.history.elect(node)
        self.controller: Any = self.history.modules.controller.Controller(
            self.metadata, node=node, timing=TIMING, defaults=self._defaults, entropy=self._entropy, now=self.now
        )

    def write(self) -> list[Record]:
        """Append and apply all that is decided; returns what took effect."""
        effect: list[Record] = []
        while (entry := self.controller.next_entry((len(self.history.entries) + 1).to_bytes(16, "big"))) is not None:
            records = self.history.take(entry)
            assert records
            self.controller.applied(entry)
            effect += records
        assert self.controller.state.encode() == self.metadata.encode()
        return effect

    def ask(self, message: Any) -> Any:
        """The answer, after all is written."""
        pending = self.controller.handle(message, self.now)
        self.write()
        return pending.result()

    def ask_only(self, message: Any) -> Any:
        """The answer that is there at once."""
        return self.controller.handle(message, self.now).result()

    # Brokers

    def registration(self, node: int, incarnation: str = "a", **changes: Any) -> Register:
        fields: dict[str, Any] = {
            "controller_epoch": 0,
            "node": node,
            "incarnation": f"{node}{incarnation}",
            "directories": (f"disk-{node}",),
            "addresses": BrokerAddresses(client=f"host-{node}:7000", peer=f"host-{node}:7001"),
            "version": "1",
            "feature_level_min": 1,
            "feature_level_max": 1,
            "last_clean_epoch": None,
            "unproven": {},
        }
        return Register(**fields | changes)

    def register(self, node: int, incarnation: str = "a", **changes: Any) -> Registered | Refused:
        asked = self.registration(node, incarnation, **changes)
        answer: Registered | Refused = self.ask(asked)
        if isinstance(answer, Registered):
            self.registered[node] = asked
        return answer

    def join(self, node: int, incarnation: str = "a", **changes: Any) -> int:
        """Register and come online; returns the broker epoch."""
        answer = self.register(node, incarnation, **changes)
        assert isinstance(answer, Registered), answer
        self.beat(node)
        return answer.broker_epoch

    def epoch_of(self, node: int) -> int:
        epoch: int = self.metadata.broker(node).broker_epoch
        return epoch

    def beat(self, *nodes: int, **changes: Any) -> Any:
        """Heartbeats; returns the last answer."""
        answer: HeartbeatReply | Refused | None = None
        for node in nodes:
            fields: dict[str, Any] = {
                "controller_epoch": 0,
                "node": node,
                "broker_epoch": self.epoch_of(node) if self.metadata.broker(node) else 1,
                "applied_index": len(self.history.entries),
            }
            answer = self.ask(Heartbeat(**fields | changes))
        return answer

    def run(self, duration_ns: int, *nodes: int) -> list[Record]:
        """Time goes on with heartbeats of these nodes; returns what was decided."""
        effect: list[Record] = []
        for _ in range(duration_ns // (100 * MS)):
            self.now_ns += 100 * MS
            if self.now_ns % HEARTBEAT == 0:
                self.beat(*nodes)
            effect += self.tick()
        return effect

    def tick(self) -> list[Record]:
        self.controller.tick(self.now)
        return self.write()

    def lose(self, node: int, *, was_refused: bool = True) -> list[Record]:
        """The connection to a broker breaks; returns what was decided."""
        self.controller.connection_lost(node, was_refused, self.now)
        return self.write()

    def stop(self, node: int) -> ShutdownProgress:
        answer: ShutdownProgress = self.ask(ControlledShutdown(0, node, self.epoch_of(node)))
        return answer

    # Topics and partitions

    def create(self, name: str = "orders", partitions: int = 1, replicas: int = 3, **settings: Any) -> str:
        """Returns the id of the topic."""
        answer = self.decide(
            CreateTopic, name=name, partitions=partitions, replication_factor=replicas, settings=settings
        )
        topic_id: str = answer.topic_id
        return topic_id

    def decide(self, kind: type[AdminRequest], /, **fields: Any) -> Any:
        """The answer to a request of an administrator; raises its error."""
        self._request_count += 1
        answer = self.ask(Decide(0, kind(**{"request_id": f"q{self._request_count}"} | fields)))  # type: ignore[arg-type]
        if isinstance(answer, DecisionFailed):
            raise self.error(answer)
        assert isinstance(answer, Done)
        assert answer.index <= len(self.history.entries)
        return answer.answer

    @staticmethod
    def error(answer: DecisionFailed) -> GoQueueError:
        return restore(answer.code, answer.text, answer.facts)

    def partition(self, topic_id: str, number: int = 0) -> PartitionChanged:
        found: PartitionChanged = self.metadata.partition(topic_id, number)
        return found

    def member(self, node: int) -> IsrMember:
        return IsrMember(node, self.epoch_of(node), self.metadata.broker(node).registration.directories[0])

    def isr_change(self, topic_id: str, *isr: int, number: int = 0, **changes: Any) -> IsrChange:
        partition = self.partition(topic_id, number)
        fields: dict[str, Any] = {
            "topic_id": topic_id,
            "partition": number,
            "leader_epoch": partition.leader_epoch,
            "partition_epoch": partition.partition_epoch,
            "isr": tuple(map(self.member, isr)),
        }
        return IsrChange(**fields | changes)

    def alter(self, node: int, *changes: IsrChange) -> list[IsrResult]:
        answer: PartitionsAltered = self.ask(AlterPartitions(0, node, self.epoch_of(node), changes))
        return list(answer.results)

    def set_isr(self, topic_id: str, *isr: int, number: int = 0) -> None:
        """The leader changes the ISR."""
        leader = self.partition(topic_id, number).leader
        assert leader is not None
        (result,) = self.alter(leader, self.isr_change(topic_id, *isr, number=number))
        assert result.refusal is None, result
