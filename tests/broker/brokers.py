"""What tests of the broker say often: a node whose disk works only when told, messages in, messages out."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from goqueue.broker.authority import Authority
from goqueue.broker.broker import Broker
from goqueue.broker.config import BrokerConfig
from goqueue.broker.delivery.dead_letter_target import DeadLetterTargets, LocalTargets
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.partition.journal import Journal
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.clock import MS
from goqueue.errors import GoQueueError
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.header import FLAGS_KNOWN, Flags
from goqueue.record.headers import PRODUCER
from goqueue.record.identity import BatchIdentity
from goqueue.record.message import StoredMessage, decode_messages
from goqueue.runtime.entropy import Entropy
from goqueue.service.messages import ReadResult, Stored, StoredBatch
from goqueue.service.new_message import NewMessage
from goqueue.service.pending import Pending
from goqueue.storage.file import Disk
from goqueue.storage.jobs import Job
from goqueue.testing import ManualClock

ROOT = "/data"
T = TypeVar("T")


class ManualWorkers:
    """Jobs wait until the test lets them run."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Job, Callable[[Exception | None], None]]] = deque()

    def submit(self, job: Job, done: Callable[[Exception | None], None]) -> None:
        self.jobs.append((job, done))

    def run_one(self) -> None:
        """Run the job that has waited for longest, and tell."""
        job, done = self.jobs.popleft()
        error: Exception | None = None
        try:
            job.run()
        except Exception as raised:
            error = raised
        done(error)

    def run_all(self) -> None:
        """Run until nothing waits, with all that follows from it."""
        while self.jobs:
            self.run_one()


QUICK = BrokerConfig(maintenance_interval_ms=10_000)


class Node:
    """A broker on a disk, and the hands of the test on its clock and its workers."""

    def __init__(
        self,
        disk: Disk,
        clock: ManualClock,
        *,
        config: BrokerConfig = QUICK,
        entropy: Entropy | None = None,
        path: str = ROOT,
        dead_letter_targets: Callable[[LocalPartitions], DeadLetterTargets] = LocalTargets,
        authority: Authority | None = None,
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.workers = ManualWorkers()
        self.broker = Broker.open(
            disk,
            path,
            clock=clock,
            workers=self.workers,
            config=config,
            entropy=entropy,
            dead_letter_targets=dead_letter_targets,
            authority=authority,
        )

    def create(self, topic: str = "orders", *, partitions: int = 1, **settings: object) -> None:
        self.done(self.broker.topics.create(topic, partitions=partitions, settings=settings))

    def done(self, pending: Pending[T]) -> T:
        """What comes of it when the workers have done all they can."""
        self.workers.run_all()
        assert pending.is_done
        return pending.result()

    def send(self, values: Sequence[bytes | None], topic: str = "orders", partition: int = 0) -> Pending[StoredBatch]:
        """Publish a batch, and let nothing run yet."""
        return self.broker.messages.publish_records(topic, partition, kernel.encode(values))

    def publish(self, *values: bytes | None, topic: str = "orders", partition: int = 0) -> StoredBatch:
        return self.done(self.send(values, topic, partition))

    def messages(
        self, *messages: NewMessage, topic: str = "orders", acks: str | None = None
    ) -> list[Stored | GoQueueError]:
        return self.done(self.broker.messages.publish(topic, messages, acks=acks))

    def send_as(self, identity: BatchIdentity, topic: str = "orders", partition: int = 0) -> Pending[StoredBatch]:
        """Publish a producer's batch; its values say which sequence they have."""
        return self.broker.messages.publish_records(topic, partition, batch_of(identity))

    def read(
        self,
        topic: str = "orders",
        partition: int = 0,
        *,
        offset: int = 0,
        max_records: int = 1_000,
        max_bytes: int = 1 << 20,
        from_time_ns: int | None = None,
        to_time_ns: int | None = None,
    ) -> ReadResult:
        """What is there now."""
        pending = self.broker.messages.read(
            topic,
            partition,
            offset=offset,
            max_records=max_records,
            max_bytes=max_bytes,
            from_time_ns=from_time_ns,
            to_time_ns=to_time_ns,
        )
        return pending.result()

    def values(self, topic: str = "orders", partition: int = 0, *, offset: int = 0) -> list[bytes]:
        """All visible values from the offset on."""
        found: list[bytes] = []
        while (result := self.read(topic, partition, offset=offset)).record_count:
            found += values_of(result)
            offset = result.next_offset
        return found

    def leader(self, topic: str = "orders", partition: int = 0) -> PartitionLeader:
        """What the broker keeps of a partition."""
        return self.broker.partitions.any_topic(topic).replicas[partition].leading

    def journal(self, topic: str, name: str | int = 0) -> Journal:
        """The journal with the facts about the name, or of the partition of that number."""
        journals = self.broker.coordinators.journals(topic)
        return self.done(journals.open(name) if isinstance(name, str) else journals.open_at(name))

    def facts(self, topic: str) -> dict[bytes, bytes]:
        """All facts of an internal topic."""
        journals = self.broker.coordinators.journals(topic)
        return {key: value for journal in journals for key, value in journal.load().items()}

    def write_directly(
        self,
        topic: str,
        *values: bytes | None,
        keys: Sequence[bytes | None] | None = None,
        partition: int = 0,
    ) -> None:
        """Put records into any topic, as only the broker itself can."""
        leader = self.leader(topic, partition)
        leader.append(kernel.encode(values, keys=keys or [None] * len(values)), lazily=True)
        leader.log.flush()

    def control(self, count: int = 1) -> None:
        """Let the broker write records of its own, as nobody from outside can."""
        leader = self.leader()
        records = kernel.encode([b"control"] * count, flags=Flags.CONTROL)
        leader.log.append(records, now_ns=self.clock.wall_ns(), flags_allowed=FLAGS_KNOWN)
        leader.flush(lazily=True)

    def tick(self, seconds: float = 0.0) -> None:
        """Let time pass, and the broker notice."""
        self.clock.advance(seconds)
        self.broker.tick()

    def pass_time(self, seconds: float, *, step: float = 0.05) -> None:
        """Let time pass in ticks, with all that they bring."""
        end_ns = self.clock.monotonic_ns() + round(seconds * 1000) * MS
        while self.clock.monotonic_ns() < end_ns:
            self.tick(step)
            self.workers.run_all()


def batch_of(identity: BatchIdentity) -> bytearray:
    _, epoch, first, count, _ = identity
    headers: list[dict[str, str | bytes] | None] = [{PRODUCER: identity.encode()}, *[None] * (count - 1)]
    return kernel.encode([f"{epoch}:{first + n}".encode() for n in range(count)], headers=headers)


def decoded(result: ReadResult) -> list[StoredMessage]:
    messages = decode_messages(result.records, TopicPartition("orders", 0), flags=Flags.COMPRESSED)
    assert len(messages) == result.record_count
    return messages


def values_of(result: ReadResult) -> list[bytes]:
    return [message.value for message in decoded(result)]


def offsets_of(result: ReadResult) -> list[int]:
    return [message.offset for message in decoded(result)]


def wait(node: Node, *, offset: int = 0, wait_ms: int = 1_000, **options: int) -> Pending[ReadResult]:
    """Read, and wait for the first record if there is none."""
    return node.broker.messages.read("orders", 0, offset=offset, wait_ms=wait_ms, **options)  # type: ignore[arg-type]


def delayed(value: bytes, due_ns: int) -> NewMessage:
    return NewMessage(value, deliver_at_ns=due_ns)
