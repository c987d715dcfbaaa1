"""A door that closes: nobody is cut off who can be answered, and nobody can keep it open."""

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from goqueue.broker.broker import Broker
from goqueue.broker.local_service import LocalService
from goqueue.clock import SystemClock
from goqueue.doors.http.door import HttpConfig, HttpDoor
from goqueue.service.messages import Stored
from goqueue.service.pending import Pending
from tests.doors.http.consumers import join, poll_path
from tests.doors.http.doors import OpenDoor, exchange, receive_all
from tests.doors.http.test_hostile import head
from tests.doors.http.test_read import Asking, waiting
from tests.doors.http.test_stream import follow

URL = "/topics/orders/messages"


@pytest.fixture
def orders(door: OpenDoor) -> OpenDoor:
    door.post("/topics", {"name": "orders"})
    return door


def test_nobody_is_let_in_any_more(door: OpenDoor) -> None:
    door.close()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(door.address)


def test_connections_that_are_idle_are_closed(door: OpenDoor) -> None:
    with door.connection() as connection:
        exchange(connection, "GET", "/health")

        door.close()

        assert connection.sock.recv(1) == b""


@pytest.mark.parametrize("path", [URL, "/topics/orders/partitions/0/messages"])
def test_long_polls_are_answered_at_once(orders: OpenDoor, path: str) -> None:
    asking = Asking(orders, f"{path}?wait=20s")
    waiting(orders)

    orders.close()

    answer = asking.answer()
    assert (answer.status, answer.json["messages"]) == (200, [])
    assert answer.headers["connection"] == "close"


def test_members_that_wait_for_messages_are_answered_at_once(orders: OpenDoor) -> None:
    asking = Asking(orders, poll_path(join(orders), wait="20s"))
    waiting(orders)

    orders.close()

    answer = asking.answer()
    assert (answer.status, answer.json["messages"]) == (200, [])


def test_streams_are_told_to_come_again(orders: OpenDoor) -> None:
    with follow(orders) as stream:
        orders.close()

        (event,) = list(stream)

    assert event.name == "error"
    assert (event.data["code"], event.data["retryable"]) == ("BROKER_NOT_AVAILABLE", True)


class SlowBroker(Broker):
    """Takes messages, and its time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.messages.publish = self._publish  # type: ignore[method-assign]

    def _publish(self, *_: Any, **__: Any) -> Any:
        self.answer: Pending[Any] = Pending()
        return self.answer


def test_a_request_that_is_being_worked_on_is_answered(tmp_path: Path) -> None:
    with OpenDoor(tmp_path, broker=SlowBroker) as door:
        with door.raw(head("POST", URL, "Content-Length: 13") + b'{"value":"a"}') as connection:
            door.until(lambda: hasattr(door.broker, "answer"))
            closing = threading.Thread(target=door.close)
            closing.start()
            door.until(lambda: door.door.is_closing)
            door.inside(lambda: door.broker.answer.resolve([Stored(0, 5, 0)]))  # type: ignore[attr-defined]
            answer = receive_all(connection)
        closing.join(20)

    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"connection: close" in answer


def test_who_does_not_end_in_time_is_cut_off(tmp_path: Path) -> None:
    with OpenDoor(tmp_path, broker=SlowBroker) as door:
        door.grace_s = 0.05
        with (
            door.raw(head("POST", URL, "Content-Length: 13") + b'{"value":"a"}') as waiting_for_answer,
            door.raw(head("POST", URL, "Content-Length: 13") + b"{") as still_sending,
        ):
            door.until(lambda: door.door.requests_in_flight == 2 and hasattr(door.broker, "answer"))

            door.close()

            for connection in (waiting_for_answer, still_sending):
                assert receive_all(connection) == b""
    assert door.door.requests_in_flight == 0


def test_an_answer_that_does_not_come_in_time_is_504(tmp_path: Path) -> None:
    with OpenDoor(tmp_path, broker=SlowBroker, config=HttpConfig(answer_s_max=0.05)) as door:
        answer = door.post(URL, {"value": "a"})

    assert (answer.status, answer.code, answer.json["retryable"]) == (504, "REQUEST_TIMEOUT", True)
    assert "retry-after" not in answer.headers


def test_an_address_that_is_taken_is_an_error_like_any_other(door: OpenDoor, tmp_path: Path) -> None:
    other = OpenDoor(tmp_path / "other")
    other.port = door.address[1]

    with pytest.raises(OSError, match="already in use"):
        other.__enter__()


def test_a_door_that_was_never_opened_can_be_closed(door: OpenDoor) -> None:
    asyncio.run(HttpDoor(LocalService.of(door.broker), clock=SystemClock()).stop(1))
