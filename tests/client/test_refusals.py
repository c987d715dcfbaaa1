"""A message that is given up says why the broker did not take it, if the broker said so."""

import pytest

from goqueue.client.accumulator import AnyHandle, MessageBatch, PartitionQueue
from goqueue.clock import SECOND
from goqueue.errors import BrokerUnavailable, GoQueueError, OutOfOrderSequence, RequestTimeout, StorageFull

TIMEOUT_NS = 2 * SECOND


def queued(queue: PartitionQueue) -> MessageBatch:
    batch = MessageBatch(queue, 0)
    batch.handles.append(AnyHandle(batch, b"value"))
    batch.seal()
    queue.ready.append(batch)
    return batch


def given_up_after(*errors: GoQueueError) -> GoQueueError | None:
    queue = PartitionQueue("orders", 0)
    batch = queued(queue)
    for now_ns, error in enumerate(errors):
        request = queue.take(now_ns=now_ns)
        assert request
        assert queue.failed(request, error, now_ns=now_ns, wait_ns=0) == []

    assert queue.expire(TIMEOUT_NS, TIMEOUT_NS) == [batch]
    return batch.error


def test_a_full_disk_is_why() -> None:
    assert isinstance(given_up_after(StorageFull("/data")), StorageFull)


def test_a_broken_connection_leaves_open_what_became_of_it() -> None:
    assert isinstance(given_up_after(BrokerUnavailable("gone")), RequestTimeout)
    assert isinstance(given_up_after(StorageFull("/data"), BrokerUnavailable("gone")), RequestTimeout)


def test_a_batch_behind_one_that_is_refused_says_the_same() -> None:
    queue = PartitionQueue("orders", 0)
    first = queued(queue)
    ahead = queue.take(now_ns=0)
    second = queued(queue)
    behind = queue.take(now_ns=0)
    assert ahead
    assert behind

    queue.failed(ahead, StorageFull("/data"), now_ns=0, wait_ns=0)
    queue.failed(behind, OutOfOrderSequence(2, 1), now_ns=0, wait_ns=0)
    queue.expire(TIMEOUT_NS, TIMEOUT_NS)

    assert isinstance(first.error, StorageFull)
    assert isinstance(second.error, StorageFull)


def test_a_refusal_that_passed_is_forgotten() -> None:
    queue = PartitionQueue("orders", 0)
    queued(queue)
    request = queue.take(now_ns=0)
    assert request
    queue.failed(request, StorageFull("/data"), now_ns=0, wait_ns=0)
    request = queue.take(now_ns=1)
    assert request
    queue.stored(request, first_offset=0, timestamp_ns=0)
    late = queued(queue)

    queue.expire(TIMEOUT_NS, TIMEOUT_NS)

    with pytest.raises(RequestTimeout):
        raise late.error or AssertionError
