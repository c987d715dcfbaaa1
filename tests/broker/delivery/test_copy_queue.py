"""Copies to another topic: each once, whatever happens to the source, to the target, and on the way between them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue import events
from goqueue.broker.delivery.copy_queue import MESSAGES_MAX
from goqueue.broker.delivery.dead_letter_target import DeadLetterTarget
from goqueue.delivery import ledger
from goqueue.delivery.dead_letter import ORIGIN, parse_origin
from goqueue.errors import BrokerUnavailable, GoQueueError, NotLeader, TopicNotFound
from goqueue.record import kernel
from goqueue.record.identity import BatchIdentity, identity_of
from goqueue.record.message import StoredMessage
from goqueue.service.messages import StoredBatch
from goqueue.service.pending import Pending
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.testing.inode import Keep
from goqueue.transactions.sequences import IDLE_NS_MAX, LastBatch, Sequences, identities
from tests.broker.brokers import Node, decoded
from tests.broker.consumers import Consumer, floor, offsets, outcomes, restarted


def letters(node: Node, topic: str = "orders.dlq") -> list[int]:
    """The offsets of the messages whose dead letters are there."""
    return [int(one.headers[ORIGIN].rpartition(":")[2]) for one in decoded(node.read(topic))]


def batches(node: Node, topic: str = "orders.dlq") -> list[BatchIdentity]:
    return [identity for _, _, identity in identities(memoryview(node.read(topic).records))]


def until_noted(node: Node, group: str = "workers") -> None:
    """Let the disks work until the ledger names the batch, and its copies may be stored."""
    stored = node.broker.partitions.delivery(node.leader()).groups[group].stored
    while not any(change.batch for change in stored.dead_letterings):
        node.workers.run_one()


# --- batches -----------------------------------------------------------------------------------


def test_a_burst_of_single_rejects_is_two_batches(node: Node) -> None:
    node.create()
    node.create("orders.dlq")
    node.publish(*[b"%d" % n for n in range(100)])
    member = Consumer(node)

    settlings = [member.begin("reject", [one.receipt]) for one in member.poll()]
    node.workers.run_all()

    assert [outcomes(one.result()) for one in settlings] == [["rejected"]] * 100
    assert letters(node) == list(range(100))
    first, second = batches(node)
    assert (first[1:], second[1:]) == ((0, 0, 1, 0), (0, 1, 99, 0))
    assert first.producer_id == second.producer_id >= 2**62
    assert floor(node) == 100


def test_more_messages_than_a_batch_holds_are_several(node: Node) -> None:
    node.create(ttl="10s", on_expire="dead_letter")
    for _ in range(3):
        node.publish(*[b"%d" % n for n in range(MESSAGES_MAX)])
    member = Consumer(node)
    node.pass_time(20, step=10)

    assert member.poll() == []
    node.workers.run_all()

    origins = [one.headers[ORIGIN] for one in decoded(node.read("orders.dlq", max_records=5_000))]
    assert origins == [f"orders:0:{n}" for n in range(3 * MESSAGES_MAX)]
    assert floor(node) == 3 * MESSAGES_MAX


def test_a_group_that_is_deleted_and_created_again_is_another_producer(node: Node) -> None:
    node.create()
    node.publish(b"a")
    for _ in range(2):
        member = Consumer(node)
        assert outcomes(member.settle("reject", member.poll())) == ["rejected"]
        member.leave()
        node.done(node.broker.groups.delete("workers"))

    first, second = batches(node)
    assert first.producer_id != second.producer_id
    assert letters(node) == [0, 0]


def test_a_message_that_the_target_refuses_does_not_keep_back_the_others(node: Node) -> None:
    node.create()
    node.create("orders.dlq", max_message_bytes=100)
    node.publish(b"a", b"x" * 200, b"c", b"d")
    member = Consumer(node)
    messages = member.poll()

    together = member.begin("reject", [one.receipt for one in messages[:2]])
    alone = member.begin("reject", [one.receipt for one in messages[2:]])
    node.pass_time(10, step=1)

    assert sorted(letters(node)) == [0, 2, 3]
    assert outcomes(together.result()) == ["rejected", "MESSAGE_TOO_LARGE"]
    assert outcomes(alone.result()) == ["rejected"] * 2
    node.done(node.broker.topics.alter("orders.dlq", {"max_message_bytes": 1_000}))
    node.pass_time(3, step=1)
    assert sorted(letters(node)) == [0, 1, 2, 3]
    assert floor(node) == 4


# --- targets that change -----------------------------------------------------------------------


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_target_that_is_deleted_and_made_again_gets_what_was_under_way(node: Node, is_stored: bool) -> None:
    node.create()
    node.create("orders.dlq")
    node.publish(b"a", b"b", b"c")
    member = Consumer(node)
    messages = member.poll()
    member.settle("reject", messages[:1])
    member.begin("reject", [messages[1].receipt])
    until_noted(node)
    while is_stored and node.leader("orders.dlq").log.next_offset < 2:
        node.workers.run_one()

    node.done(node.broker.topics.delete("orders.dlq"))
    node.create("orders.dlq")
    node.pass_time(3, step=0.5)
    member.settle("reject", messages[2:])

    assert letters(node) == [1, 2]
    assert floor(node) == 3


@pytest.mark.parametrize("keep", ["nothing", "everything"])
def test_a_batch_that_was_noted_goes_where_it_was_to_go_although_the_setting_has_changed(
    node: Node, keep: Keep
) -> None:
    node.create()
    node.create("orders.dlq")
    node.publish(b"a", b"b")
    member = Consumer(node, session_timeout_ms=300_000)
    messages = member.poll()
    member.begin("reject", [messages[0].receipt])
    until_noted(node)
    while node.leader("orders.dlq").log.durable_offset < 1:
        node.workers.run_one()
    node.done(node.broker.topics.alter("orders", {"dead_letter_topic": "graveyard"}))

    again = restarted(node, keep=keep)
    member = member.moved_to(again)
    member.settle("reject", messages[1:])
    again.pass_time(3, step=0.5)

    assert letters(again) == [0]
    assert letters(again, "graveyard") == [1]
    assert floor(again) == 2


def test_a_letter_is_not_doubled_by_an_outage_of_weeks(node: Node, clock: ManualClock) -> None:
    """Other producers are forgotten after seven days without use."""
    node.create(retention="0s")
    node.create("orders.dlq", retention="0s")
    node.publish(b"a")
    member = Consumer(node)
    (message,) = member.poll()
    settling = member.begin("reject", [message.receipt])
    while not settling.is_done:
        node.workers.run_one()
    node.leader("orders.dlq").flush()
    clock.advance_ns(3 * IDLE_NS_MAX)

    again = restarted(node, keep="nothing")
    again.leader("orders.dlq").producers.sequences.forget_idle(now_ns=clock.wall_ns())
    again.pass_time(60, step=10)
    Consumer(again).poll()
    again.workers.run_all()

    assert letters(again) == [0]
    assert floor(again) == 1


@pytest.mark.parametrize("seed", range(20))
def test_each_letter_is_there_once_while_leaders_of_source_and_target_change(node: Node, seed: int) -> None:
    rng = Random(seed)
    node.create()
    node.create("orders.dlq")
    node.publish(*[b"%d" % n for n in range(30)])
    member = Consumer(node, session_timeout_ms=3_600_000)

    for _ in range(40):
        for one in member.poll(rng.randint(1, 4)):
            member.begin("reject", [one.receipt])
        topic = rng.choice(["orders", "orders.dlq"])
        node.broker.partitions.resign(topic, 0)
        for _ in range(rng.randint(0, 3)):
            if node.workers.jobs:
                node.workers.run_one()
        node.broker.partitions.become_leader(topic, 0)
        node.tick(rng.choice([0, 1.1, 20]))
    for _ in range(100):
        node.workers.run_all()
        node.tick(20)
        member.settle("reject", member.poll())

    assert sorted(letters(node)) == list(range(30))
    assert floor(node) == 30


# --- an older version --------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [[], [0], [0, 1]])
def test_what_an_older_version_had_under_way_is_finished_once(node: Node, stored: list[int]) -> None:
    node.create()
    node.create("orders.dlq")
    node.publish(b"a", b"b", topic="orders")
    node.publish(b"older", topic="orders.dlq")
    member = Consumer(node, session_timeout_ms=300_000)
    messages = member.poll()
    group_delivery = node.broker.partitions.delivery(node.leader()).groups["workers"]
    raw = ledger.blob(group_delivery.cursor.deliveries[next(iter(group_delivery.cursor.deliveries))].offsets)
    group_delivery.stored.note(ledger.DeadLettering(0, raw, "REJECTED", "bad", member.id, 1, node.clock.wall_ns()))
    if stored:
        headers = [{ORIGIN: f"orders:0:{offset}", "gq-group": "workers"} for offset in stored]
        records = kernel.encode([messages[offset].value for offset in stored], headers=headers)
        node.done(node.broker.messages.publish_records("orders.dlq", 0, records))
    node.workers.run_all()

    for _ in range(2):
        node = restarted(node)
        Consumer(node, "others").poll()
        node.pass_time(3, step=0.5)

        found = [one.headers[ORIGIN] for one in decoded(node.read("orders.dlq", offset=1))]
        assert found == ["orders:0:0", "orders:0:1"]
        assert floor(node) == 2


# --- a target on another node ------------------------------------------------------------------


@dataclass
class RemoteTopic:
    """A dead-letter topic on another node: the letters that are in it, by the offset they came from."""

    id: str
    sequences: Sequences = field(default_factory=Sequences)
    letters: list[int] = field(default_factory=list)

    def store(self, records: bytes, identity: BatchIdentity) -> StoredBatch:
        assert identity_of(records) == identity
        known = self.sequences.check(identity)
        if known:
            return StoredBatch(known.first_offset, known.record_count, known.timestamp_ns, duplicate=True)
        first = len(self.letters)
        messages = kernel.decode(records, None, StoredMessage, verify=False)
        places = [parse_origin(message.headers[ORIGIN]) for message in messages]
        self.letters += [place[2] for place in places if place]
        self.sequences.note(identity, first_offset=first, timestamp_ns=1)
        return StoredBatch(first, len(messages), 1)


class Request(NamedTuple):
    """What is on its way to the other node, and the answer that is waited for."""

    run: Callable[[], Any]
    answer: Pending[Any]

    def arrive(self) -> None:
        try:
            self.answer.resolve(self.run())
        except GoQueueError as error:
            self.answer.fail(error)

    def arrive_unanswered(self) -> None:
        try:
            self.run()
        except GoQueueError:
            pass
        self.answer.fail(BrokerUnavailable("the connection broke"))


class Elsewhere:
    """Another node, and the network to it. Requests arrive when the test lets them, in any order, or never."""

    def __init__(self) -> None:
        self.topics: list[RemoteTopic] = [RemoteTopic("id-0")]
        self.requests: list[Request] = []

    def recreate(self) -> None:
        self.topics.append(RemoteTopic(f"id-{len(self.topics)}"))

    def ask(self, run: Callable[[], Any]) -> Pending[Any]:
        request = Request(run, Pending())
        self.requests.append(request)
        return request.answer

    def find(self, topic: str, number: int, *, like: str | None) -> Pending[DeadLetterTarget]:
        assert like == "orders"
        return Pending.of(RemoteTarget(self, topic, self.topics[-1].id, number))


class RemoteTarget:
    """A partition that another node leads."""

    def __init__(self, elsewhere: Elsewhere, topic: str, topic_id: str, partition: int) -> None:
        self._elsewhere = elsewhere
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition

    def _found(self) -> RemoteTopic:
        found = self._elsewhere.topics[-1]
        if found.id != self.topic_id:
            raise TopicNotFound(self.topic)
        return found

    def last_batch(self, producer_id: int) -> Pending[LastBatch | None]:
        return self._elsewhere.ask(lambda: self._found().sequences.last_batch(producer_id))

    def publish(
        self, records: bytearray, identity: BatchIdentity, copied_from: events.CopyOrigin
    ) -> Pending[StoredBatch]:
        sent = bytes(records)
        return self._elsewhere.ask(lambda: self._found().store(sent, identity))


class Cluster:
    """A source on this node whose dead letters go to another node."""

    def __init__(self, messages: int) -> None:
        self.clock = ManualClock()
        self.elsewhere = Elsewhere()
        self.gone = 0  # messages before it were removed
        self.start(MemoryDisk())
        self.node.create()
        self.node.publish(*[b"%d" % n for n in range(messages)])
        self.member = Consumer(self.node, member_id="m", session_timeout_ms=3_600_000)
        self.messages = messages

    def start(self, disk: MemoryDisk) -> None:
        self.node = Node(disk, self.clock, dead_letter_targets=lambda _: self.elsewhere)

    def reject(self, count: int) -> None:
        for one in self.member.poll(count):
            self.member.begin("reject", [one.receipt])

    def arrive(self, count: int) -> None:
        """So many requests arrive, one after another, and are answered."""
        for _ in range(count):
            self.node.workers.run_all()
            self.elsewhere.requests.pop(0).arrive()
        self.node.workers.run_all()

    def restart(self, keep: Keep) -> None:
        """Requests that were on their way still are; nobody waits for their answers."""
        self.elsewhere.requests = [Request(one.run, Pending()) for one in self.elsewhere.requests]
        assert isinstance(self.node.disk, MemoryDisk)
        self.start(self.node.disk.crash(7, keep=keep))
        self.member = Consumer(self.node, member_id="m", session_timeout_ms=3_600_000)

    def remove(self) -> None:
        """Retention removes a message."""
        self.gone += 1
        self.node.done(self.node.broker.topics.truncate("orders", 0, self.gone))

    def heal(self) -> None:
        """From now on all requests arrive in order and are answered; all messages that are left are rejected."""
        for _ in range(1_000):
            self.node.workers.run_all()
            while self.elsewhere.requests:
                self.elsewhere.requests.pop(0).arrive()
                self.node.workers.run_all()
            self.node.tick(20)
            self.reject(100)
            if floor(self.node) == self.messages:
                return
        raise AssertionError("it does not end")

    def check(self) -> None:
        seen: set[int] = set()
        for topic in self.elsewhere.topics:
            assert len(topic.letters) == len(set(topic.letters)), topic.letters
            seen.update(topic.letters)
        assert seen >= set(range(self.gone, self.messages))


ACTIONS = st.one_of(
    st.tuples(st.just("reject"), st.integers(1, 4)),
    st.tuples(
        st.sampled_from(["arrive", "arrive", "arrive", "unanswered", "lost", "late", "not leader"]), st.integers(0, 3)
    ),
    st.tuples(st.just("work"), st.integers(1, 3)),
    st.tuples(st.just("wait"), st.just(0)),
    st.tuples(st.just("restart"), st.sampled_from(["nothing", "everything", "random"])),
    st.tuples(st.sampled_from(["recreate", "remove"]), st.just(0)),
)


@given(st.lists(ACTIONS, max_size=60))
def test_each_letter_is_there_once_whatever_fails(actions: list[tuple[str, Any]]) -> None:
    cluster = Cluster(messages=12)
    for action, argument in actions:
        requests = cluster.elsewhere.requests
        match action:
            case "reject":
                cluster.reject(argument)
            case "work":
                for _ in range(min(argument, len(cluster.node.workers.jobs))):
                    cluster.node.workers.run_one()
            case "wait":
                cluster.node.tick(1.1)
            case "restart":
                cluster.restart(argument)
            case "recreate":
                cluster.elsewhere.recreate()
            case "remove" if cluster.gone < cluster.messages:
                cluster.remove()
            case "arrive" if requests:
                requests.pop(argument % len(requests)).arrive()
            case "unanswered" if requests:
                requests.pop(argument % len(requests)).arrive_unanswered()
            case "lost" if requests:
                requests.pop(argument % len(requests)).answer.fail(BrokerUnavailable("the connection broke"))
            case "late" if requests:
                requests[argument % len(requests)].answer.fail(BrokerUnavailable("it takes too long"))
            case "not leader" if requests:
                requests.pop(argument % len(requests)).answer.fail(NotLeader("orders.dlq", 0))
            case _:
                pass
    cluster.heal()
    cluster.check()


def test_messages_that_are_gone_meanwhile_are_done_without_a_copy() -> None:
    cluster = Cluster(messages=3)
    cluster.reject(3)
    cluster.remove()
    cluster.remove()

    cluster.heal()

    assert cluster.elsewhere.topics[0].letters == [2]


def test_a_reject_waits_for_the_next_leader_of_the_target() -> None:
    cluster = Cluster(messages=1)
    (message,) = cluster.member.poll()
    settling = cluster.member.begin("reject", [message.receipt])
    cluster.elsewhere.requests.pop().answer.fail(NotLeader("orders.dlq", 0))
    assert not settling.is_done

    cluster.heal()

    assert outcomes(settling.result()) == ["rejected"]
    cluster.check()


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_batch_that_arrives_late_is_taken_for_no_other_one(before: int, is_restarted: bool) -> None:
    """The batch is believed to be lost, its message is removed, and then another one is rejected."""
    cluster = Cluster(messages=before + 2)
    for _ in range(before):
        cluster.reject(1)
        cluster.arrive(2)
    cluster.reject(1)
    cluster.arrive(1)
    (late,) = cluster.elsewhere.requests
    cluster.elsewhere.requests.clear()
    for _ in range(before + 1):
        cluster.remove()
    if is_restarted:
        cluster.restart("everything")
    else:
        late.answer.fail(BrokerUnavailable("it takes too long"))
        cluster.node.tick(1.1)
    cluster.arrive(1)
    assert floor(cluster.node) == before + 1  # without a copy
    cluster.reject(1)
    cluster.arrive(1)
    late.arrive()

    cluster.heal()

    assert cluster.elsewhere.topics[0].letters == list(range(before + 2))


def test_nothing_more_is_done_for_a_source_that_has_ended() -> None:
    cluster = Cluster(messages=1)
    (message,) = cluster.member.poll()
    settling = cluster.member.begin("reject", [message.receipt])
    cluster.elsewhere.requests.pop().arrive()
    cluster.node.workers.run_all()
    cluster.node.done(cluster.node.broker.topics.delete("orders"))

    cluster.elsewhere.requests.pop().arrive()
    for _ in range(3):
        cluster.node.tick(2)

    assert settling.is_done
    assert cluster.elsewhere.requests == []
    assert not cluster.node.broker._dead_letter_writer._queues


def test_offsets_that_are_answered_are_where_the_letters_are(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b", b"c")
    member = Consumer(node)

    results = member.settle("reject", member.poll())

    assert [one.dlq_offset for one in results if not isinstance(one, GoQueueError)] == [0, 1, 2]
    assert offsets(member.poll()) == []
