"""The accumulator against a broker that loses requests, answers and its memory: order, exactly once, nothing forgotten.

The broker of the state machine is a model around the real `Sequences`. It takes requests in the order in which they
were sent over a connection and answers in that order; a connection that is cut loses what was not
taken yet and all answers that were under way.
"""

from collections import deque
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from goqueue.client.accumulator import (
    FIRST_SEQUENCE,
    IN_FLIGHT_MAX,
    REFUSALS_MAX,
    REQUEST_BYTES,
    SMALL_RECORD_BYTES,
    AnyHandle,
    MessageBatch,
    MessageColumns,
    OutgoingMessage,
    OutgoingRequest,
    PartitionQueue,
    ProducerConfig,
    TopicQueues,
)
from goqueue.errors import (
    BrokerUnavailable,
    GoQueueError,
    InternalError,
    InvalidConfig,
    InvalidMessage,
    InvalidPartition,
    OutOfOrderSequence,
    PartitionNotFound,
    RequestTimeout,
    SchemaRejected,
    StorageFull,
)
from goqueue.names import TopicPartition
from goqueue.record.header import HEADER_BYTES
from goqueue.record.identity import BatchIdentity, identity_of
from goqueue.record.message import decode_messages
from goqueue.transactions.sequences import WINDOW, Sequences
from goqueue.wire.partitioning import partition_of_key

PRODUCER_ID = 7
TIMEOUT_NS = 1_000
RETRY_NS = 10


def sealed(queue: PartitionQueue, values: list[bytes], *, now_ns: int = 0) -> MessageBatch:
    """A batch of small values that waits to be sent."""
    batch = MessageBatch(queue, now_ns)
    batch.handles += [AnyHandle(batch, value) for value in values]
    batch.seal()
    queue.ready.append(batch)
    return batch


def take(queue: PartitionQueue, *, now_ns: int = 0) -> OutgoingRequest:
    request = queue.take(now_ns=now_ns)
    assert request
    return request


class Sent(NamedTuple):
    """A request on the wire, as it was when it was sent."""

    request: OutgoingRequest
    identity: BatchIdentity
    values: tuple[bytes, ...]


class Entry(NamedTuple):
    """A batch in the log of the broker."""

    identity: BatchIdentity
    values: tuple[bytes, ...]


class ModelBroker:
    """One partition."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.sequences = Sequences()

    def publish(self, sent: Sent) -> int:
        """The offset of the first record."""
        known = self.sequences.check(sent.identity)
        if known:
            return known.first_offset
        offset = sum(len(entry.values) for entry in self.log)
        self._note(Entry(sent.identity, sent.values), offset)
        return offset

    def lose(self, count: int) -> None:
        """A power cut takes the last batches, and what is known of producers is read from the rest."""
        kept = self.log[: len(self.log) - count]
        self.log, self.sequences = [], Sequences()
        for entry in kept:
            self._note(entry, sum(len(one.values) for one in self.log))

    def values(self) -> list[bytes]:
        return [value for entry in self.log for value in entry.values]

    def _note(self, entry: Entry, offset: int) -> None:
        self.log.append(entry)
        self.sequences.note(entry.identity, first_offset=offset, timestamp_ns=1)


class PublishingThroughFaults(RuleBasedStateMachine):
    """One partition queue, one connection at a time, one broker."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 10 * TIMEOUT_NS
        self.count = 0
        self.queue = PartitionQueue("t", 0)
        self.broker = ModelBroker()
        self.logs: list[list[bytes]] = []  # of topics that are gone, and what power cuts took
        self.wire: deque[Sent] = deque()
        self.answers: deque[tuple[OutgoingRequest, int | GoQueueError]] = deque()
        self.batches: list[tuple[MessageBatch, tuple[bytes, ...]]] = []
        self.under_number: dict[tuple[int, int], tuple[bytes, ...]] = {}
        self.blamed: set[MessageBatch] = set()  # those of which it may be said that they were not stored

    # --- the producer --------------------------------------------------------------------------

    @rule(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4))
    def add(self, sizes: list[int]) -> None:
        for size in sizes:
            values = tuple(b"%06d" % number for number in range(self.count, self.count + size))
            self.count += size
            self.batches.append((sealed(self.queue, list(values), now_ns=self.now_ns), values))

    @rule(count=st.integers(1, 7))
    def send(self, count: int) -> None:
        for _ in range(count):
            request = self.queue.take(now_ns=self.now_ns)
            if request is None:
                return
            values = tuple(value for batch in request.batches for value in self.values_of(batch))
            identity = BatchIdentity(PRODUCER_ID, self.queue.epoch, request.first_sequence, request.record_count)
            self.wire.append(Sent(request, identity, values))
            assert self.under_number.setdefault((identity.epoch, identity.first_sequence), values) == values

    @rule(size=st.integers(1, 2))
    def publish(self, size: int) -> None:
        self.add([size])
        self.send(1)

    @rule(share=st.sampled_from((0, 2, 3)))
    def wait(self, share: int = 0) -> None:
        self.now_ns += TIMEOUT_NS // share if share else RETRY_NS

    @rule()
    def expire(self) -> None:
        self.blamed.update(self.queue.expire(self.now_ns - TIMEOUT_NS, TIMEOUT_NS))

    # --- the broker ----------------------------------------------------------------------------

    @precondition(lambda self: self.wire)
    @rule(count=st.sampled_from((1, 2, 5)))
    def handle(self, count: int) -> None:
        for _ in range(min(count, len(self.wire))):
            sent = self.wire.popleft()
            try:
                self.answers.append((sent.request, self.broker.publish(sent)))
            except GoQueueError as error:
                self.answers.append((sent.request, error))

    @precondition(lambda self: self.wire)
    @rule()
    def refuse_for_now(self) -> None:
        self.answers.append((self.wire.popleft().request, StorageFull("disk")))

    @precondition(lambda self: self.wire)
    @rule()
    def refuse_for_good(self) -> None:
        request = self.wire.popleft().request
        self.blamed.update(request.batches)
        self.answers.append((request, InvalidMessage("no")))

    @precondition(lambda self: self.wire)
    @rule()
    def store_and_stumble(self) -> None:
        sent = self.wire.popleft()
        try:
            self.broker.publish(sent)
        except GoQueueError as error:
            self.answers.append((sent.request, error))
        else:
            self.blamed.update(sent.request.batches)
            self.answers.append((sent.request, InternalError("a bug")))

    @precondition(lambda self: self.broker.log)
    @rule(count=st.sampled_from((1, 2, 3, None)))
    def lose_what_was_stored(self, count: int | None) -> None:
        """To a power cut, or all of it because the topic is made anew."""
        self.cut(0)
        self.logs.append(self.broker.values())
        stored = len(self.broker.log)
        self.broker.lose(stored if count is None else min(count, stored))

    # --- the network ---------------------------------------------------------------------------

    @precondition(lambda self: self.answers)
    @rule(count=st.integers(1, 5))
    def deliver(self, count: int) -> None:
        for _ in range(min(count, len(self.answers))):
            self.answer(*self.answers.popleft())

    @precondition(lambda self: self.queue.in_flight)
    @rule(handled=st.sampled_from((0, 1, 5)))
    def cut(self, handled: int) -> None:
        if self.wire and handled:
            self.handle(handled)
        self.wire.clear()
        self.answers.clear()
        for request in list(self.queue.in_flight):
            self.answer(request, BrokerUnavailable("cut"))

    # --- what must hold ------------------------------------------------------------------------

    @invariant()
    def no_more_than_five_are_under_way(self) -> None:
        assert len(self.queue.in_flight) <= IN_FLIGHT_MAX

    @invariant()
    def nothing_is_stored_twice_or_out_of_order(self) -> None:
        values = self.broker.values()
        assert values == sorted(set(values))

    @invariant()
    def only_those_fail_of_whom_it_may_be_said(self) -> None:
        assert all(batch in self.blamed for batch, _ in self.batches if batch.error)

    def teardown(self) -> None:
        for _ in range(1_000):
            if self.queue.is_empty:
                break
            self.wait()
            self.send(IN_FLIGHT_MAX)
            if self.wire:
                self.handle(IN_FLIGHT_MAX)
            if self.answers:
                self.deliver(IN_FLIGHT_MAX)
        self.nothing_is_stored_twice_or_out_of_order()
        self.only_those_fail_of_whom_it_may_be_said()
        for batch, values in self.batches:
            assert batch.is_done
            if not batch.error:
                self.check_place(batch, values)

    def check_place(self, batch: MessageBatch, values: tuple[bytes, ...]) -> None:
        assert batch.first_offset >= 0
        place = slice(batch.first_offset, batch.first_offset + len(values))
        assert any(tuple(log[place]) == values for log in (self.broker.values(), *self.logs))

    def answer(self, request: OutgoingRequest, answer: int | GoQueueError) -> None:
        assert request in self.queue.in_flight
        if isinstance(answer, GoQueueError):
            self.queue.failed(request, answer, now_ns=self.now_ns, wait_ns=RETRY_NS)
        else:
            self.queue.stored(request, first_offset=answer, timestamp_ns=1)

    def values_of(self, batch: MessageBatch) -> tuple[bytes, ...]:
        return next(values for one, values in self.batches if one is batch)


PublishingThroughFaults.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestPublishingThroughFaults = PublishingThroughFaults.TestCase


# --- single steps -------------------------------------------------------------------------------


def test_what_is_ready_travels_together() -> None:
    queue = PartitionQueue("t", 0)
    batches = [sealed(queue, [b"a"]), sealed(queue, [b"b", b"c"])]

    request = take(queue)

    assert request.batches == batches
    assert request.record_count == 3
    assert queue.take(now_ns=0) is None


def test_a_request_ends_before_it_gets_too_large_for_one() -> None:
    queue = PartitionQueue("t", 0)
    for _ in range(3):
        batch = MessageBatch(queue, 0)
        message = OutgoingMessage(bytes(REQUEST_BYTES // 2), None, None, 2)
        batch.add(AnyHandle(batch, message), message)
        batch.seal()
        queue.ready.append(batch)

    assert [len(take(queue).batches) for _ in range(3)] == [1, 1, 1]


def test_five_requests_are_under_way_and_the_sixth_waits() -> None:
    queue = PartitionQueue("t", 0)
    requests = []
    for number in range(IN_FLIGHT_MAX):
        sealed(queue, [b"%d" % number])
        requests.append(take(queue))
    last = sealed(queue, [b"last"])

    assert queue.take(now_ns=0) is None
    queue.stored(requests[0], first_offset=0, timestamp_ns=0)
    assert take(queue).batches == [last]


def test_each_message_of_a_stored_request_has_its_offset() -> None:
    queue = PartitionQueue("t", 0)
    first, second = sealed(queue, [b"a", b"b"]), sealed(queue, [b"c"])
    handles = [*first.held, *second.held]

    queue.stored(take(queue), first_offset=10, timestamp_ns=5)

    assert [batch.first_offset for batch in (first, second)] == [10, 12]
    assert [handle.item for handle in handles] == [0, 1, 0]
    assert first.is_done
    assert not first.held


def test_nothing_new_goes_out_until_all_that_was_under_way_is_answered_and_the_wait_is_over() -> None:
    queue = PartitionQueue("t", 0)
    sealed(queue, [b"a"])
    first = take(queue)
    sealed(queue, [b"b"])
    second = take(queue)
    sealed(queue, [b"c"])

    queue.failed(first, BrokerUnavailable("gone"), now_ns=0, wait_ns=10)

    assert queue.take(now_ns=20) is None
    queue.failed(second, OutOfOrderSequence(2, 1), now_ns=0, wait_ns=10)
    assert queue.take(now_ns=9) is None
    assert queue.wait_ns(9) == 1
    assert [take(queue, now_ns=10) for _ in range(2)] == [first, second]
    assert [request.first_sequence for request in (first, second)] == [1, 2]
    assert take(queue, now_ns=10).first_sequence == 3


def test_what_was_given_up_leaves_a_hole_because_it_may_have_been_stored() -> None:
    queue = PartitionQueue("t", 0)
    sealed(queue, [b"a", b"b"])
    queue.failed(take(queue), BrokerUnavailable("gone"), now_ns=0, wait_ns=0)

    (expired,) = queue.expire(1, TIMEOUT_NS)
    sealed(queue, [b"c"])

    assert isinstance(expired.error, RequestTimeout)
    assert take(queue).first_sequence == FIRST_SEQUENCE + 2
    assert queue.epoch == 0


def test_a_broker_that_misses_something_is_sent_the_rest_in_a_new_epoch() -> None:
    queue = PartitionQueue("t", 0)
    sealed(queue, [b"a", b"b"])
    queue.failed(take(queue), InvalidMessage("no"), now_ns=0, wait_ns=0)
    rest = sealed(queue, [b"c"])

    queue.failed(take(queue), OutOfOrderSequence(3, 0), now_ns=0, wait_ns=0)
    again = take(queue)

    assert again.batches == [rest]
    assert (queue.epoch, again.first_sequence) == (1, FIRST_SEQUENCE)


def test_a_broker_that_is_ahead_of_us_is_told_nothing_more_in_that_epoch() -> None:
    queue = PartitionQueue("t", 0)
    lost = sealed(queue, [b"a"])
    request = take(queue)

    assert queue.failed(request, OutOfOrderSequence(1, 50), now_ns=0, wait_ns=0) == [lost]
    sealed(queue, [b"b"])

    assert (take(queue).first_sequence, queue.epoch) == (FIRST_SEQUENCE, 1)


def test_after_all_was_given_up_the_next_one_is_tried_at_once() -> None:
    queue = PartitionQueue("t", 0)
    sealed(queue, [b"a"])
    queue.failed(take(queue), BrokerUnavailable("gone"), now_ns=0, wait_ns=1_000)
    queue.expire(1, TIMEOUT_NS)

    sealed(queue, [b"b"], now_ns=10)

    assert take(queue, now_ns=10).record_count == 1
    assert queue.attempt == 0


def test_what_is_given_up_says_why_the_broker_refused_it_and_what_comes_later_does_not() -> None:
    queue = PartitionQueue("t", 0)
    refused = sealed(queue, [b"a"])
    queue.failed(take(queue), StorageFull("disk"), now_ns=0, wait_ns=0)
    queue.expire(1, TIMEOUT_NS)
    never_sent = sealed(queue, [b"b"])

    queue.expire(1, TIMEOUT_NS)

    assert isinstance(refused.error, StorageFull)
    assert isinstance(never_sent.error, RequestTimeout)


def test_what_is_under_way_is_not_given_up_however_old_it_is() -> None:
    queue = PartitionQueue("t", 0)
    sealed(queue, [b"a"])
    take(queue)
    sealed(queue, [b"b"])

    assert queue.expire(1_000, TIMEOUT_NS) == []


def test_what_is_not_old_enough_stays() -> None:
    queue = PartitionQueue("t", 0)
    old, young = sealed(queue, [b"a"], now_ns=1), sealed(queue, [b"b"], now_ns=5)

    assert queue.expire(5, TIMEOUT_NS) == [old]
    assert take(queue).batches == [young]


def test_giving_up_settles_everything_but_the_open_batch() -> None:
    queue = PartitionQueue("t", 0)
    batches = [sealed(queue, [b"a"])]
    take(queue)
    batches.append(sealed(queue, [b"b"]))

    assert queue.give_up(BrokerUnavailable("over")) == batches
    assert queue.is_empty
    assert all(isinstance(batch.error, BrokerUnavailable) for batch in batches)


def test_a_handle_that_came_too_late_is_not_held_and_one_in_time_is_even_when_all_is_over() -> None:
    queue = PartitionQueue("t", 0)
    batch = MessageBatch(queue, 0)
    early, late = AnyHandle(batch, b"early"), AnyHandle(batch, b"late")
    batch.handles.append(early)
    handles = batch.handles
    batch.seal()
    handles.append(late)

    assert (batch.holds(early), batch.holds(late)) == (True, False)
    batch.settle()
    assert (batch.holds(early), batch.holds(late)) == (True, False)
    assert late.item == b"late"


def test_the_first_handle_of_a_failed_batch_stays_with_it() -> None:
    queue = PartitionQueue("t", 0)
    batch = sealed(queue, [b"a", b"b"])
    first = batch.held[0]

    batch.settle(InvalidMessage("no"))

    assert batch.held == [first]


def test_the_size_of_a_batch_counts_each_message_once() -> None:
    batch = MessageBatch(PartitionQueue("t", 0), 0)
    message = OutgoingMessage(b"v" * 1_000, b"key", {"name": "text"}, 2)
    batch.add(AnyHandle(batch, message), message)
    batch.handles.append(AnyHandle(batch, b"small"))

    batch.seal()

    assert message.size == HEADER_BYTES + 1_000 + 3 + 4 + 4 + 4
    assert batch.size == message.size + SMALL_RECORD_BYTES


def test_a_request_says_who_sent_it_on_its_first_record_only() -> None:
    queue = PartitionQueue("t", 0)
    batch = MessageBatch(queue, 0)
    message = OutgoingMessage(b"full", b"key", {"colour": "red"}, 1)
    batch.handles.append(AnyHandle(batch, b"plain"))
    batch.add(AnyHandle(batch, message), message)
    batch.seal()
    queue.ready.append(batch)

    records = take(queue).encode((PRODUCER_ID, 3), "none")
    first, second = decode_messages(records, TopicPartition("t", 0), flags=0, verify=False)

    assert identity_of(records) == BatchIdentity(PRODUCER_ID, 3, FIRST_SEQUENCE, 2)
    assert (first.value, first.key, first.headers) == (b"plain", None, {})
    assert (second.value, second.key, second.headers, second.priority_code) == (b"full", b"key", {"colour": "red"}, 1)


def test_messages_without_a_key_go_round() -> None:
    queues = TopicQueues("t", 3, compression="none", acks="all", value_bytes_max=10)

    assert queues.choose(None, None) is None
    assert [queues.next_turn().partition for _ in range(4)] == [0, 1, 2, 0]


def test_a_key_or_a_partition_decides() -> None:
    queues = TopicQueues("t", 3, compression="none", acks="all", value_bytes_max=10)

    assert queues.choose(b"key", None) is queues.choose(b"key", None)
    assert queues.choose(b"key", 2) is queues.partitions[2]
    with pytest.raises(PartitionNotFound):
        queues.choose(None, 3)
    with pytest.raises(InvalidPartition):
        queues.choose(None, -1)


def test_an_empty_key_has_a_partition_and_the_topic_says_which() -> None:
    for partitioner in ("murmur3", "murmur2"):
        queues = TopicQueues("t", 7, compression="none", acks="all", value_bytes_max=10, partitioner=partitioner)
        keys = [b"", b"a", None, b"customer-42"]
        wanted = [None if key is None else partition_of_key(key, 7, partitioner) for key in keys]

        chosen = [queues.choose(key, None) for key in keys]
        spread = dict(queues.spread(MessageColumns([b"0", b"1", b"2", b"3"], keys), None))

        assert [queue and queue.partition for queue in chosen] == wanted
        for index, queue in enumerate(chosen):
            assert b"%d" % index in spread[queue].values


def test_the_queues_of_a_topic_that_was_made_anew_can_begin_in_an_epoch_that_none_has_used() -> None:
    queues = TopicQueues("t", 2, compression="none", acks="all", value_bytes_max=10, epoch=4)
    queues.partitions[1].epoch = 6

    assert queues.next_epoch == 7


@pytest.mark.parametrize(
    "wrong",
    [
        {"linger_ns": -1},
        {"batch_count": 0},
        {"batch_count": 100_001},
        {"batch_bytes": 0},
        {"buffer_bytes": 0},
        {"delivery_timeout_ns": 0},
        {"acks": "some"},
        {"compression": "gzip"},
    ],
)
def test_a_setting_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    (name,) = wrong

    with pytest.raises(InvalidConfig) as caught:
        ProducerConfig(**wrong)  # type: ignore[arg-type]

    assert caught.value.setting == name


def test_no_more_is_under_way_than_the_broker_remembers() -> None:
    assert IN_FLIGHT_MAX == WINDOW


def test_a_second_request_is_not_taken_for_the_first_one() -> None:
    machine = PublishingThroughFaults()
    machine.publish(1)
    machine.publish(1)

    machine.refuse_for_now()
    machine.handle(1)
    machine.deliver(2)

    machine.teardown()
    assert machine.broker.values() == [b"000000", b"000001"]


def test_what_follows_a_request_that_was_given_up_is_not_stored_twice() -> None:
    machine = PublishingThroughFaults()
    machine.publish(1)
    machine.wait(2)
    machine.publish(1)

    machine.cut(2)
    machine.wait(2)
    machine.wait()
    machine.expire()

    machine.teardown()
    assert [bool(batch.error) for batch, _ in machine.batches] == [True, False]
    assert machine.broker.values() == [b"000000", b"000001"]


# --- messages that break their schema -----------------------------------------------------------------------------


def rejected(index: int) -> SchemaRejected:
    return SchemaRejected("orders-value", 1, 1, "/id", "is missing", index=index)


def test_a_message_that_breaks_its_schema_is_taken_out_and_the_others_go_again() -> None:
    queue = PartitionQueue("orders", 0)
    first = sealed(queue, [b"a", b"b"])
    second = sealed(queue, [b"bad", b"d"])
    handle = second.held[0]
    request = take(queue)
    settled = queue.failed(request, rejected(2), now_ns=0, wait_ns=RETRY_NS)
    assert [batch.held for batch in settled] == [[handle]]
    assert handle.batch is settled[0]
    assert isinstance(handle.batch.error, SchemaRejected)
    again = take(queue)
    assert again is request
    assert (again.first_sequence, again.record_count) == (FIRST_SEQUENCE, 3)
    assert [one.item for one in first.held + second.held] == [b"a", b"b", b"d"]
    queue.stored(again, first_offset=10, timestamp_ns=1)
    assert (first.first_offset, second.first_offset) == (10, 12)
    assert second.error is None


def test_what_follows_a_message_that_was_taken_out_is_numbered_without_a_gap_in_the_same_epoch() -> None:
    queue = PartitionQueue("orders", 0, is_transactional=True)
    sealed(queue, [b"a", b"bad"])
    request = take(queue)
    sealed(queue, [b"c"])
    behind = take(queue)
    queue.failed(request, rejected(1), now_ns=0, wait_ns=RETRY_NS)
    out_of_order = OutOfOrderSequence(FIRST_SEQUENCE + 2, FIRST_SEQUENCE)
    assert queue.failed(behind, out_of_order, now_ns=0, wait_ns=RETRY_NS) == []
    assert [(one.first_sequence, one.record_count) for one in (take(queue, now_ns=RETRY_NS), take(queue))] == [
        (FIRST_SEQUENCE, 1),
        (FIRST_SEQUENCE + 1, 1),
    ]
    assert queue.epoch == 0
    sealed(queue, [b"d"])
    assert take(queue).first_sequence == FIRST_SEQUENCE + 2


def test_a_batch_that_held_nothing_but_what_was_taken_out_is_settled_with_it() -> None:
    queue = PartitionQueue("orders", 0)
    lonely = sealed(queue, [b"bad"])
    other = sealed(queue, [b"good"])
    request = take(queue)
    settled = queue.failed(request, rejected(0), now_ns=0, wait_ns=RETRY_NS)
    assert lonely in settled
    assert lonely.is_done
    assert take(queue).batches == [other]


def test_a_request_full_of_bad_messages_is_given_up_after_a_while() -> None:
    queue = PartitionQueue("orders", 0)
    sealed(queue, [b"bad"] * (REFUSALS_MAX + 10))
    settled: list[MessageBatch] = []
    for _ in range(REFUSALS_MAX):
        settled += queue.failed(take(queue), rejected(0), now_ns=0, wait_ns=RETRY_NS)
    assert queue.is_empty
    assert sum(isinstance(batch.error, SchemaRejected) for batch in settled) == REFUSALS_MAX + 1
