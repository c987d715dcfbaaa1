"""Handles: what becomes of a message, told to threads, tasks and callbacks."""

import asyncio
import logging
from threading import Thread

import pytest

from goqueue.client.accumulator import MessageBatch, PartitionQueue
from goqueue.client.handles import AsyncHandle, Handle, call_all
from goqueue.errors import BrokerUnavailable, RequestTimeout


def sealed(*kinds: type[Handle] | type[AsyncHandle]) -> tuple[MessageBatch, list[Handle | AsyncHandle]]:
    batch = MessageBatch(PartitionQueue("t", 1), 0)
    handles = [kind(batch, b"v") for kind in kinds]
    batch.handles += handles
    batch.seal()
    return batch, handles


def settle(batch: MessageBatch, error: BrokerUnavailable | None = None) -> None:
    batch.first_offset = 40
    batch.settle(error)
    call_all(batch.callbacks)


def test_each_handle_of_a_batch_knows_its_own_offset() -> None:
    batch, handles = sealed(Handle, Handle, Handle)
    settle(batch)

    results = [handle.result() for handle in handles if isinstance(handle, Handle)]

    assert [(one.topic, one.partition, one.offset) for one in results] == [("t", 1, 40), ("t", 1, 41), ("t", 1, 42)]


def test_a_message_whose_place_the_broker_forgot_has_no_offset() -> None:
    batch, (handle,) = sealed(Handle)
    batch.settle()

    assert isinstance(handle, Handle)
    assert handle.result().offset == -1


def test_a_thread_that_waits_is_woken_and_told_why_the_message_is_not_stored() -> None:
    batch, (handle,) = sealed(Handle)
    assert isinstance(handle, Handle)
    settler = Thread(target=settle, args=(batch, BrokerUnavailable("gone")))
    settler.start()

    with pytest.raises(BrokerUnavailable, match="gone"):
        handle.result(timeout="10s")
    settler.join()
    assert batch.is_seen


def test_a_result_that_does_not_come_in_time_is_a_timeout() -> None:
    _, (handle, other) = sealed(Handle, AsyncHandle)
    assert isinstance(handle, Handle)
    assert isinstance(other, AsyncHandle)

    with pytest.raises(RequestTimeout):
        handle.result(timeout="1ms")
    with pytest.raises(RequestTimeout):
        asyncio.run(other.result(timeout="1ms"))


def test_a_task_awaits_its_handle() -> None:
    batch, (handle,) = sealed(AsyncHandle)
    assert isinstance(handle, AsyncHandle)

    async def work() -> int:
        asyncio.get_running_loop().call_soon(settle, batch)
        return (await handle).offset

    assert asyncio.run(work()) == 40


def test_callbacks_are_called_once_before_or_after_and_their_errors_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, logger="goqueue.client")
    batch, (handle,) = sealed(Handle)
    assert isinstance(handle, Handle)
    called: list[Handle] = []

    def fail(_: Handle) -> None:
        raise ValueError("not ours")

    handle.add_callback(called.append)
    handle.add_callback(fail)
    settle(batch)
    handle.add_callback(called.append)

    assert called == [handle, handle]
    assert "a callback of a handle failed" in caplog.text
