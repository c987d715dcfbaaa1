"""A replicated topic on real nodes: who leads it, what its replicas have on their disks, and publishers that fail over.

A client talks to the leader of a partition itself; who that is, the metadata log says. When the leader is killed, a
publisher waits until the log names another one, and goes on there with what was not acknowledged.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, pairwise
from threading import Event, Thread

from goqueue import Client
from goqueue.client.options import TopicSettings
from goqueue.cluster.records import PartitionChanged
from goqueue.errors import GoQueueError
from tests.crash.cluster_processes import LOOK_S, PATIENCE_S, ClusterProcesses, NodeProcess, wait_until

ATTEMPT_S = 2.0
"""How long a publisher tries one node, before it looks who leads."""
BATCH = 20
LOGS = ("log", "ledger")


class ReplicatedTopic:
    """A topic with a replica of each of its partitions on each of three nodes. `create` makes it."""

    def __init__(self, cluster: ClusterProcesses, name: str) -> None:
        topic = cluster.witness.metadata.topic_named(name)
        assert topic is not None
        self.cluster = cluster
        self.name = name
        self._id = topic.id
        self.numbers = range(topic.partition_count)

    @classmethod
    def create(cls, cluster: ClusterProcesses, name: str = "orders", *, partitions: int = 1) -> "ReplicatedTopic":
        """Create it, and wait until all nodes know."""
        settings: TopicSettings = {"flush": "group"}
        with cluster.controller.client() as client:
            client.create_topic(name, partitions=partitions, replication_factor=len(cluster.nodes), **settings)
        cluster.wait_agreed()
        cluster.witness.wait_for(lambda metadata: metadata.topic_named(name), f"the topic {name}")
        topic = cls(cluster, name)
        topic.wait_in_sync()
        return topic

    # --- what the metadata log says ----------------------------------------------------------------

    def partition(self, number: int = 0) -> PartitionChanged:
        """The last record of the partition."""
        return self.cluster.witness.metadata.partitions[self._id, number]

    def leader(self, number: int = 0) -> NodeProcess | None:
        """The node that leads the partition; None while there is none."""
        leader = self.partition(number).leader
        return None if leader is None else self.cluster.nodes[leader]

    def leading(self, number: int = 0) -> NodeProcess:
        """The node that leads the partition."""
        leader = self.leader(number)
        assert leader is not None, f"{self.name}-{number} has no leader"
        return leader

    def followers(self, number: int = 0) -> list[NodeProcess]:
        """The nodes that follow the leader of the partition, the next leader first."""
        partition = self.partition(number)
        return [self.cluster.nodes[node] for node in partition.replicas if node != partition.leader]

    def wait_led_by_another(self, gone: NodeProcess) -> None:
        """Wait until each partition has a leader that is another node."""
        self._wait_for(lambda partition: partition.leader not in (None, gone.node), f"led by another than {gone.node}")

    def wait_without(self, node: int) -> None:
        """Wait until the node is an in-sync replica of no partition."""
        self._wait_for(lambda partition: node not in partition.isr, f"node {node} is not in sync")

    def wait_in_sync(self) -> None:
        """Wait until all replicas of all partitions are in sync."""
        self._wait_for(lambda partition: set(partition.isr) == set(partition.replicas), "all replicas are in sync")

    def _wait_for(self, fact: Callable[[PartitionChanged], object], what: str) -> None:
        self.cluster.witness.wait_for(
            lambda metadata: all(fact(partition) for partition in metadata.partitions_of(self._id)),
            f"{self.name}: {what}",
        )

    # --- what is stored ----------------------------------------------------------------------------

    def read(self, number: int = 0) -> dict[int, bytes]:
        """The values that the leader of the partition has, by their offsets."""
        with self.leading(number).client() as client:
            return {message.offset: bytes(message.value) for message in client.read(self.name, partition=number)}

    def wait_replicated(self) -> None:
        """Wait until the logs of all replicas are equally long. Nothing may be published meanwhile."""
        wait_until(lambda: not self.differences(), "the logs of all replicas are the same")

    def differences(self) -> list[str]:
        """The logs that are not the same, byte by byte, on all nodes."""
        return [
            self._described(number, log, stored)
            for number, log, stored in self._replicas()
            if len(set(stored.values())) > 1
        ]

    def divergences(self) -> list[str]:
        """The logs of which one is not the beginning of another: more than a node that was away can explain."""
        return [
            self._described(number, log, stored)
            for number, log, stored in self._replicas()
            if not all(longer.startswith(shorter) for shorter, longer in pairwise(sorted(stored.values(), key=len)))
        ]

    def _replicas(self) -> Iterator[tuple[int, str, dict[int, bytes]]]:
        for number in self.numbers:
            for log in LOGS:
                yield number, log, {node: self._stored(one, number, log) for node, one in self.cluster.nodes.items()}

    def _described(self, number: int, log: str, stored: dict[int, bytes]) -> str:
        sizes = ", ".join(f"{len(raw)} on node {node}" for node, raw in stored.items())
        same = next(
            (at for at, bytes_there in enumerate(zip(*stored.values(), strict=False)) if len(set(bytes_there)) > 1),
            min(len(raw) for raw in stored.values()),
        )
        return f"{self.name}-{number} {log}: bytes: {sizes}; the same: the first {same}"

    def stored_bytes(self, log: str, number: int = 0) -> int:
        """How long the longest replica of that log is."""
        return max(len(self._stored(process, number, log)) for process in self.cluster.nodes.values())

    def _stored(self, process: NodeProcess, number: int, log: str) -> bytes:
        """All segments of a log, one after the other: replicas may begin their segments at other offsets."""
        segments = (process.data / "topics" / self.name / str(number) / log).glob("*.log")
        return b"".join(path.read_bytes() for path in sorted(segments))


def stop_all(cluster: ClusterProcesses) -> None:
    """End all nodes in order."""
    for process in cluster.nodes.values():
        assert process.stop() == 0, process.last_words()


class PartitionPublisher(Thread):
    """Publishes distinct values to the leader of one partition, and those that were not acknowledged once more."""

    def __init__(self, topic: ReplicatedTopic, number: int) -> None:
        super().__init__(daemon=True)
        self._topic = topic
        self.number = number
        self._is_over = Event()
        self._values = (b"%d-%d" % (number, index) for index in count())
        self._unacknowledged: list[bytes] = []
        self.acknowledged: dict[int, bytes] = {}  # by offset
        self.in_doubt: set[bytes] = set()  # published more than once, because there was no answer
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._is_over.is_set():
                with suppress(_Gone):
                    self._publish_to_the_leader()
                self._is_over.wait(LOOK_S)
        except BaseException as error:
            self.failure = error

    def _publish_to_the_leader(self) -> None:
        leader = self._topic.leader(self.number)
        if leader is None or not leader.is_running:
            return
        with leader.client(ATTEMPT_S) as client:
            while not self._is_over.is_set() and self._topic.leader(self.number) is leader:
                self._publish_batch(client)

    def _publish_batch(self, client: Client) -> None:
        """Publish a batch; raises `_Gone` if not all of it was acknowledged."""
        batch = self._unacknowledged + [next(self._values) for _ in range(BATCH - len(self._unacknowledged))]
        self._unacknowledged = []
        producer = client.producer(linger="1ms", delivery_timeout=f"{ATTEMPT_S}s")
        try:
            handles = [(value, producer.send(self._topic.name, value, partition=self.number)) for value in batch]
        except GoQueueError as error:  # it could not learn of the topic: nothing was sent
            self._not_acknowledged(batch, error)
            raise _Gone from error
        reason: GoQueueError | None = None
        for value, handle in handles:
            try:
                stored = handle.result()
            except GoQueueError as error:
                self._not_acknowledged([value], error)
                reason = error
            else:
                assert self.acknowledged.get(stored.offset) is None, f"offset {stored.offset} was acknowledged twice"
                self.acknowledged[stored.offset] = value
        if reason is not None:
            raise _Gone from reason
        producer.close()

    def _not_acknowledged(self, values: Sequence[bytes], error: GoQueueError) -> None:
        if not error.retryable:
            raise error
        self._unacknowledged += values
        self.in_doubt.update(values)

    def wait_for_more(self, messages: int = 5 * BATCH) -> None:
        """Wait until so many more messages are acknowledged."""
        enough = len(self.acknowledged) + messages
        wait_until(
            lambda: self.failure or len(self.acknowledged) >= enough, f"{enough} messages for partition {self.number}"
        )
        assert self.failure is None, self.failure

    def finish(self) -> None:
        self._is_over.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        assert self.failure is None, self.failure

    def check(self) -> None:
        """What was acknowledged is where it was said to be. Only what was published twice may be there twice."""
        stored = self._topic.read(self.number)
        lost = {offset: value for offset, value in self.acknowledged.items() if stored.get(offset) != value}
        assert not lost, f"{len(lost)} acknowledged messages are lost, at first {dict(list(lost.items())[:5])}"
        twice = {value for value, times in Counter(stored.values()).items() if times > 1}
        assert twice <= self.in_doubt


class _Gone(Exception):
    """The leader does not answer, or leads no more."""


@contextmanager
def publishers(topic: ReplicatedTopic) -> Iterator[list[PartitionPublisher]]:
    """One for each partition, all the time."""
    started = [PartitionPublisher(topic, number) for number in topic.numbers]
    for one in started:
        one.start()
    try:
        yield started
    finally:
        for one in started:
            one.finish()
