"""Dead letters for tests: write some, list them, redrive them."""

from collections.abc import Iterable, Mapping

from goqueue.broker.delivery.dead_letters import DeadLetterLimits, DeadLetterQueues
from goqueue.delivery.dead_letter import Death, dead_headers
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.header import Priority
from goqueue.record.message import StoredMessage
from goqueue.runtime.entropy import SeededEntropy
from goqueue.service.pending import Pending
from goqueue.wire.reports import DeadLetter, DeadLetterFilter, RedriveInfo
from tests.broker.brokers import Node
from tests.broker.consumers import Got

ALL = DeadLetterFilter()


def create(node: Node, *, partitions: int = 2, **settings: object) -> None:
    for topic in ("orders", "orders.dlq"):
        node.create(topic, partitions=partitions, **settings)


def dead_letter(
    node: Node,
    *values: bytes | None,
    partition: int = 0,
    key: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    reason: str = "REJECTED",
    error: str = "bad",
    group: str = "billing",
    attempts: int = 3,
    origin: str | None = None,
    priority: int = Priority.NORMAL,
) -> None:
    """Write dead letters, as if they had died just now."""
    now_ns = node.clock.wall_ns()
    records = kernel.encode(
        values,
        keys=[key] * len(values),
        priorities=priority,
        headers=[
            {
                **dead_headers(
                    headers or {},
                    Death(reason, error, group, "m", attempts, origin or f"orders:{partition}:{n}", None, now_ns),
                )
            }
            for n in range(len(values))
        ],
    )
    node.done(node.broker.messages.publish_records("orders.dlq", partition, records))


def numbered(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def listed(node: Node, wanted: DeadLetterFilter = ALL, **page: int) -> list[bytes]:
    return [message_of(letter).value for letter in node.broker.dead_letters.list("orders", wanted, **page)]


def message_of(letter: DeadLetter) -> StoredMessage:
    (message,) = kernel.decode(letter.record, TopicPartition("orders.dlq", letter.partition), StoredMessage)
    assert message.offset == letter.offset
    return message


def messages_of(node: Node, topic: str = "orders", partition: int = 0) -> list[StoredMessage]:
    origin = TopicPartition(topic, partition)
    return kernel.decode(node.read(topic, partition, max_bytes=1 << 24).records, origin, StoredMessage)


def redriven(node: Node, wanted: DeadLetterFilter = ALL, **options: object) -> RedriveInfo:
    """A redrive, when it is over."""
    return ended(node, begun(node, wanted, **options).id)


def begun(node: Node, wanted: DeadLetterFilter = ALL, **options: object) -> RedriveInfo:
    """A redrive that has begun for certain; of what follows as little has happened as can be."""
    return answered(node, node.broker.dead_letters.redrive("orders", wanted, **options))  # type: ignore[arg-type]


def answered(node: Node, pending: Pending[RedriveInfo]) -> RedriveInfo:
    while not pending.is_done:
        node.workers.run_one()
    return pending.result()


def ended(node: Node, redrive_id: str) -> RedriveInfo:
    for _ in range(10_000):
        node.workers.run_all()
        info = node.broker.dead_letters.redrive_info("orders", redrive_id)
        if info.state != "running":
            return info
        node.tick(0.05)
    raise AssertionError("it does not end")


def numbers(info: RedriveInfo) -> tuple[str, int, int, int, int]:
    return info.state, info.matched, info.redriven, info.skipped_loop, info.failed


def patient(node: Node, **config: int) -> DeadLetterQueues:
    """The verbs with other limits."""
    limits = DeadLetterLimits(**config)
    return DeadLetterQueues(
        node.broker.partitions,
        clock=node.clock,
        timers=node.broker._timers,
        entropy=SeededEntropy(1),
        config=limits,
    )


def values(messages: Iterable[Got]) -> list[bytes]:
    return [message.value for message in messages]
