"""The publish engine by itself: the test is the driver, the broker and the clock."""

from collections.abc import Sequence

import pytest

from goqueue.client.accumulator import (
    NO_BATCH,
    AnyHandle,
    MessageBatch,
    MessageColumns,
    OutgoingMessage,
    OutgoingRequest,
    PartitionQueue,
    ProducerConfig,
)
from goqueue.client.publish_engine import FAILURES_KEPT, PublishEngine
from goqueue.clock import MS, SECOND
from goqueue.errors import (
    BrokerUnavailable,
    Conflict,
    GoQueueError,
    MessageTooLarge,
    NotLeader,
    PartitionNotFound,
    RequestTimeout,
    TopicNotFound,
)
from goqueue.record.identity import BatchIdentity, identity_of
from goqueue.runtime.entropy import SeededEntropy
from goqueue.wire import verbs


def metadata(partitions: int = 1, *, max_message_bytes: int = 1_000) -> verbs.TopicMetadata:
    return verbs.TopicMetadata("t", "", [1] * partitions, max_message_bytes=max_message_bytes)


def answer(first_offset: int, timestamp_ns: int = 0) -> verbs.PublishAnswer:
    return verbs.PublishAnswer(first_offset, 1, timestamp_ns)


def engine(partitions: int = 1, **config: object) -> PublishEngine:
    made = PublishEngine(ProducerConfig(**config), SeededEntropy(1))  # type: ignore[arg-type]
    made.identified(verbs.ProducerIdentity(7, 0))
    made.learned("t", metadata(partitions))
    return made


def add(made: PublishEngine, value: bytes = b"v", *, partition: int | None = None, now_ns: int = 0) -> AnyHandle:
    handle = AnyHandle(NO_BATCH, OutgoingMessage(value, None, None, 2))
    made.add("t", handle, partition, now_ns=now_ns)
    return handle


def sent(made: PublishEngine, now_ns: int = 0) -> list[tuple[PartitionQueue, OutgoingRequest]]:
    """What a driver would send now."""
    found = []
    for queue in [*made.take_sealed()]:
        while request := made.next_request(queue, now_ns):
            found.append((queue, request))
    return found


def one_sent(made: PublishEngine, now_ns: int = 0) -> tuple[PartitionQueue, OutgoingRequest]:
    (only,) = sent(made, now_ns)
    return only


def identity(made: PublishEngine, queue: PartitionQueue, request: OutgoingRequest) -> BatchIdentity:
    _, records = made.encode(queue, request)
    found = identity_of(records)
    assert found is not None
    return found


def errors(batches: Sequence[MessageBatch]) -> list[GoQueueError | None]:
    return [batch.error for batch in batches]


def test_a_message_without_linger_is_sealed_at_once_and_knows_its_place_when_it_is_stored() -> None:
    made = engine(linger_ns=0)
    handle = add(made)

    queue, request = one_sent(made)
    settled = made.stored(queue, request, answer(41, 9_000))

    assert settled == [handle.batch]
    assert (handle.batch.first_offset, handle.batch.timestamp_ns, handle.item) == (41, 9_000, 0)
    assert made.unstored() == ({}, None)


def test_a_batch_is_sealed_when_it_is_full_or_has_lingered() -> None:
    made = engine(linger_ns=5 * MS, batch_count=2)
    add(made, now_ns=1 * MS)
    assert not made.sealed

    assert made.seal_lingered(3 * MS) == 6 * MS
    assert not made.sealed
    assert made.seal_lingered(6 * MS) is None
    assert len(made.sealed) == 1

    add(made)
    add(made)
    assert len(made.sealed) == 2


def test_a_batch_that_a_ctrl_c_has_left_open_is_completed_by_the_next_message_and_sent_once() -> None:
    made = engine(linger_ns=SECOND)
    first = add(made, b"first")
    first.batch.seal()  # and the Ctrl-C came before it was handed over

    second = add(made, b"second")
    made.seal_all()

    assert second.batch is not first.batch
    requests = sent(made)
    assert [batch for _, request in requests for batch in request.batches] == [first.batch, second.batch]


def test_a_batch_that_was_handed_over_twice_is_sent_once() -> None:
    made = engine(linger_ns=0)
    handle = add(made)
    made.sealed.append(handle.batch)

    _, request = one_sent(made)

    assert request.record_count == 1


def test_a_lost_request_is_sent_again_under_its_number_after_a_wait() -> None:
    made = engine(linger_ns=0)
    add(made)
    queue, request = one_sent(made)
    number = identity(made, queue, request).first_sequence

    assert made.failed(queue, request, BrokerUnavailable("gone"), 0) == []

    wait_ns = queue.wait_ns(0)
    assert wait_ns is not None
    assert 10 * MS <= wait_ns <= 20 * MS
    assert made.next_request(queue, wait_ns - 1) is None
    again = made.next_request(queue, wait_ns)
    assert again is request
    assert identity(made, queue, again).first_sequence == number
    assert made.sent_count == 1


def test_a_batch_whose_delivery_timeout_is_over_is_given_up() -> None:
    made = engine(linger_ns=0, delivery_timeout_ns=SECOND)
    handle = add(made)
    queue, request = one_sent(made)
    made.failed(queue, request, BrokerUnavailable("gone"), 0)

    assert made.expire(queue, SECOND) == []
    assert made.expire(queue, SECOND + 1) == [handle.batch]
    assert isinstance(handle.batch.error, RequestTimeout)
    assert isinstance(made.failure, RequestTimeout)


def test_what_the_broker_refuses_for_good_is_not_sent_again() -> None:
    made = engine(linger_ns=0)
    handle = add(made)
    queue, request = one_sent(made)
    refused = MessageTooLarge("value", 2, 1)

    assert errors(made.failed(queue, request, refused, 0)) == [refused]
    assert made.unreported() is handle
    assert made.unstored() == ({"t": 1}, refused)
    made.forget_failures()
    assert made.unstored() == ({}, None)


def test_a_leader_that_has_moved_loses_nothing() -> None:
    made = engine(linger_ns=0)
    add(made)
    queue, request = one_sent(made)

    assert made.failed(queue, request, NotLeader("t", 0), 0) == []
    assert made.next_request(queue, SECOND) is request


def test_failures_that_are_not_kept_are_counted() -> None:
    made = engine(linger_ns=0)
    for _ in range(FAILURES_KEPT + 5):
        add(made)
        queue, request = one_sent(made)
        made.failed(queue, request, MessageTooLarge("value", 2, 1), 0)

    counts, _ = made.unstored()

    assert counts == {"t": FAILURES_KEPT + 5}


def test_a_dropped_topic_seals_its_batches_and_starts_anew_in_a_new_epoch() -> None:
    made = engine(linger_ns=SECOND)
    handle = add(made)
    (queue,) = made.queues

    dropped = made.drop_topic("t")
    made.take_sealed()

    assert dropped is not None
    assert not made.is_current(queue)
    assert made.give_up(dropped, TopicNotFound("t")) == [handle.batch]
    assert made.drop_topic("t") is None
    with pytest.raises(TopicNotFound):
        add(made)
    made.learned("t", metadata())
    add(made)
    made.seal_all()
    assert identity(made, *one_sent(made)).epoch == 1


def test_a_topic_that_is_learned_again_keeps_its_queues_and_takes_the_new_limits() -> None:
    made = engine(linger_ns=SECOND)
    with pytest.raises(MessageTooLarge):
        add(made, bytes(1_001))
    assert not made.is_ready_for("t", bytes(1_001))
    (before,) = made.queues

    made.learned("t", metadata(max_message_bytes=2_000))

    assert made.is_ready_for("t", bytes(1_001))
    add(made, bytes(1_001))
    assert list(made.queues) == [before]


def test_a_message_for_a_partition_that_there_is_not_is_refused() -> None:
    made = engine(partitions=2)

    with pytest.raises(PartitionNotFound):
        add(made, partition=2)
    assert not made.sealed


def test_the_buffer_is_full_until_batches_are_settled() -> None:
    made = engine(linger_ns=0, buffer_bytes=300)
    add(made, bytes(400))
    assert made.is_full

    queue, request = one_sent(made)
    made.stored(queue, request, answer(0))

    assert not made.is_full


def test_messages_that_come_together_are_cut_into_batches_that_need_no_handle() -> None:
    made = engine(partitions=2)

    made.add_bulk("t", made.cut("t", MessageColumns([b"a", b"b"]), [0, 1]), now_ns=0)

    assert {queue.partition for queue, _ in sent(made)} == {0, 1}


def test_a_transaction_ends_with_what_was_not_stored() -> None:
    made = engine(linger_ns=0)
    made.identify(9, 3)
    made.begin_transaction(5)
    add(made)
    queue, request = one_sent(made)
    found = identity(made, queue, request)
    assert (found.producer_id, found.epoch, found.transaction) == (9, 3, 5)

    made.seal_transaction()
    with pytest.raises(Conflict, match="the transaction is over"):
        made.check_usable()
    given_up, error = made.end_transaction()

    assert (len(given_up), error, made.sent_count) == (1, None, 1)
    assert isinstance(given_up[0].error, Conflict)
    made.begin_transaction(6)
    made.check_usable()
    assert made.failure is None


def test_a_closed_engine_takes_nothing_not_even_in_a_new_transaction() -> None:
    made = engine()

    made.close()
    made.begin_transaction(1)

    with pytest.raises(Conflict, match="the producer is closed"):
        made.check_usable()


def test_the_same_seed_begins_at_the_same_partition() -> None:
    firsts = {one.turns["t"].partition for one in (engine(partitions=64), engine(partitions=64))}

    assert len(firsts) == 1
