"""Clients that mean harm, or know no better. None of them may hurt the others."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from goqueue.doors.http.config import KIB, MIB, HttpConfig
from goqueue.errors import InvalidConfig
from tests.doors.http.doors import OpenDoor, exchange, receive_all

URL = "/topics/orders/messages"
CHUNKED = {"Transfer-Encoding": "chunked"}


@pytest.fixture
def orders(door: OpenDoor) -> OpenDoor:
    door.post("/topics", {"name": "orders"})
    return door


def head(method: str, path: str, *headers: str) -> bytes:
    return "".join(f"{line}\r\n" for line in (f"{method} {path} HTTP/1.1", "Host: here", *headers, "")).encode()


def refusal(raw: bytes) -> tuple[int, Any]:
    """The status and the body of an answer as it stood on the wire."""
    top, _, body = raw.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in top
    return int(top.split()[1]), json.loads(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"value":"a"',
        b'{"name":"a","value":"a"} trailing',
        b'{"value":"\xff"}',
        b'{"value":"\xed\xa0\x80"}',
        b'{"value":"a","unknown":"\xff"}',
        b'{"\xff":1,"value":"a"}',
        b'{"value":"\\ud800"}',
        b'{"value":"\x00"}',
        b'{"value":NaN}',
        b"\xef\xbb\xbf{}",
        '{"value":"a"}'.encode("utf-16"),
        b"value=a&key=b",
        b'{"unknown":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"unknown":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b"[" * 500_000,
    ],
)
@pytest.mark.parametrize("path", [URL, "/topics"])
def test_what_is_no_json_is_refused(orders: OpenDoor, path: str, body: bytes) -> None:
    answer = orders.request("POST", path, body)

    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert answer.json["error"].startswith(("invalid JSON: ", "invalid body: "))
    assert orders.get(URL).json["messages"] == []


@pytest.mark.parametrize(
    ("method", "path", "limit"),
    [("POST", "/topics", MIB), ("PATCH", "/topics/orders/config", MIB), ("POST", URL, 32 * MIB)],
)
def test_a_body_that_is_announced_as_too_large_is_refused_unread(
    orders: OpenDoor, method: str, path: str, limit: int
) -> None:
    with orders.raw(head(method, path, f"Content-Length: {limit + 1}")) as connection:
        status, body = refusal(connection.recv(65_536))

    assert (status, body["code"]) == (413, "REQUEST_TOO_LARGE")
    assert body["details"] == {"size": limit + 1, "limit": limit}


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/1.0"])
@pytest.mark.parametrize("path", ["/topics", URL, "/nope"])
def test_a_body_that_is_too_large_does_not_cost_its_sender_the_answer(
    orders: OpenDoor, path: str, version: str
) -> None:
    size = 48 * MIB
    lines = (f"POST {path} {version}", "Host: here", "Connection: close", f"Content-Length: {size}", "", "")
    with orders.raw("\r\n".join(lines).encode()) as connection:
        connection.sendall(bytes(size))
        status, body = refusal(receive_all(connection))

    assert (status, body["code"]) == ((404, "NOT_FOUND") if path == "/nope" else (413, "REQUEST_TOO_LARGE"))
    orders.until(lambda: not orders.door.connections_open)


def test_a_sender_that_does_not_stop_is_cut_off(tmp_path: Path) -> None:
    announced = head("POST", "/topics", "Connection: close", f"Content-Length: {2 * MIB}")
    with OpenDoor(tmp_path, config=HttpConfig(arrival_s_max=0.1)) as door, door.raw(announced) as connection:
        status, _ = refusal(receive_all(connection))
        door.until(lambda: not door.door.connections_open)

    assert status == 413


@pytest.mark.parametrize("hosts", [(), ("Host: here", "Host: there")])
@pytest.mark.parametrize(("method", "path"), [("GET", "/health"), ("POST", URL)])
def test_http_1_1_names_one_host(orders: OpenDoor, method: str, path: str, hosts: tuple[str, ...]) -> None:
    lines = (f"{method} {path} HTTP/1.1", *hosts, "Connection: close", "Content-Length: 0", "", "")
    with orders.raw("\r\n".join(lines).encode()) as connection:
        status, body = refusal(receive_all(connection))

    assert (status, body["code"], body["details"]) == (400, "INVALID_REQUEST", {"path": "Host"})


def test_http_1_0_need_not_name_a_host(door: OpenDoor) -> None:
    with door.raw(b"GET /health HTTP/1.0\r\n\r\n") as connection:
        assert receive_all(connection).startswith(b"HTTP/1.1 200 OK")


def chunks(count: int, chunk: bytes) -> Iterator[bytes]:
    for _ in range(count):
        yield chunk


def test_a_body_in_chunks_is_refused_as_soon_as_it_is_too_large(orders: OpenDoor) -> None:
    with orders.connection() as connection:
        connection.request("POST", URL, chunks(40, b" " * MIB), CHUNKED, encode_chunked=True)
        response = connection.getresponse()
        body = json.loads(response.read())

        assert (response.status, body["code"]) == (413, "REQUEST_TOO_LARGE")
        assert 32 * MIB < body["details"]["size"] < 33 * MIB
        assert exchange(connection, "GET", "/health").status == 200, "the connection can be used again"


def test_a_body_in_small_chunks_is_put_together(orders: OpenDoor) -> None:
    raw = json.dumps({"value": "x" * 1000}).encode()
    with orders.connection() as connection:
        pieces = (raw[at : at + 7] for at in range(0, len(raw), 7))
        connection.request("POST", URL, pieces, CHUNKED, encode_chunked=True)
        assert connection.getresponse().status == 200

    assert orders.get(URL).json["messages"][0]["value"] == "x" * 1000


def test_the_largest_body_that_is_allowed_is_taken(orders: OpenDoor) -> None:
    padded = json.dumps({"value": "a"}).encode().ljust(16 * MIB + KIB)

    assert orders.request("POST", URL, padded).status == 200
    assert orders.request("POST", URL, padded + b" ").code == "REQUEST_TOO_LARGE"


def test_objects_of_two_bytes_do_not_fill_the_memory(orders: OpenDoor) -> None:
    body = b'{"messages":[' + b"{}," * 2_000_000 + b"{}]}"

    answer = orders.request("POST", URL, body)

    assert (answer.status, answer.code) == (413, "REQUEST_TOO_LARGE")


def test_a_crowd_of_large_bodies_is_told_to_come_again(tmp_path: Path) -> None:
    with OpenDoor(tmp_path, config=HttpConfig(bodies_bytes_max=2 * MIB)) as door:
        door.post("/topics", {"name": "orders"})
        with door.raw(head("POST", URL, f"Content-Length: {3 * MIB}") + b" " * (3 * MIB - 1)) as connection:
            status, body = refusal(connection.recv(65_536))

        assert (status, body["code"], body["retryable"]) == (503, "BROKER_NOT_AVAILABLE", True)
        assert door.post(URL, {"value": "a"}).status == 200


def test_a_body_that_ends_too_soon_is_nobodys_loss(orders: OpenDoor) -> None:
    with orders.raw(head("POST", URL, "Content-Length: 100") + b'{"value":"a"}'):
        orders.until(lambda: orders.door.requests_in_flight)

    orders.until(lambda: not orders.door.requests_in_flight)
    assert orders.get(URL).json["messages"] == []


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /health HTTP/1.1\r\nHost: here\r\nContent-Length: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost here\r\n\r\n",
        b"BREW /health HTTP/1.1\r\nHost: here\r\n\r\n",
        b"POST /topics HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_is_refused_in_the_usual_shape(door: OpenDoor, raw: bytes) -> None:
    with door.raw(raw) as connection:
        status, body = refusal(receive_all(connection))

    assert (status, body["code"]) == (400, "INVALID_REQUEST")
    assert door.get("/health").status == 200


@pytest.mark.parametrize("line", [b"X: " + b"x" * 70_000, b"X: x\r\n" * 12_000])
def test_a_head_that_does_not_end_is_refused(door: OpenDoor, line: bytes) -> None:
    with door.raw(b"GET /health HTTP/1.1\r\nHost: here\r\n" + line) as connection:
        status, body = refusal(receive_all(connection))

    assert (status, body["code"]) == (400, "INVALID_REQUEST")
    assert "over the limit" in body["error"]


def test_a_request_that_does_not_arrive_is_given_up(tmp_path: Path) -> None:
    begun = [b"GET /hea", head("POST", URL, "Content-Length: 10") + b"{"]
    silent = [b"\r\n\r\n", b""]
    with OpenDoor(tmp_path, config=HttpConfig(arrival_s_max=0.1)) as door, ExitStack() as opened:
        answers = [receive_all(one) for one in [opened.enter_context(door.raw(sent)) for sent in begun + silent]]

        for status, body in map(refusal, answers[:2]):
            assert (status, body["code"], body["retryable"]) == (504, "REQUEST_TIMEOUT", True)
        assert answers[2:] == [b"", b""]
        door.until(lambda: not door.door.requests_in_flight)


def test_a_request_that_has_arrived_may_take_longer(tmp_path: Path) -> None:
    with OpenDoor(tmp_path, config=HttpConfig(arrival_s_max=0.1)) as door:
        door.post("/topics", {"name": "orders"})

        assert door.get(f"{URL}?wait=1300ms").status == 200


def test_there_are_only_so_many_connections(tmp_path: Path) -> None:
    with OpenDoor(tmp_path, config=HttpConfig(connections_max=2)) as door:
        with door.connection() as first, door.connection() as second:
            assert exchange(first, "GET", "/health").status == 200
            assert exchange(second, "GET", "/health").status == 200
            with door.raw() as third:
                status, body = refusal(receive_all(third))
            assert exchange(first, "GET", "/health").status == 200
        assert (status, body["code"], body["retryable"]) == (503, "BROKER_NOT_AVAILABLE", True)


def test_requests_in_a_row_are_answered_in_a_row(orders: OpenDoor) -> None:
    body = b'{"value":"a"}'
    publish = head("POST", URL, f"Content-Length: {len(body)}") + body

    with orders.raw(publish * 3 + head("GET", "/nope") + head("GET", "/health", "Connection: close")) as connection:
        answers = receive_all(connection)

    assert [answer[:3] for answer in answers.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"200", b"404", b"200"]
    assert answers.index(b'"offset":0') < answers.index(b'"status":"ok"')


def test_a_client_that_asks_first_is_told_to_go_on(orders: OpenDoor) -> None:
    body = b'{"value":"a"}'
    with orders.raw(head("POST", URL, f"Content-Length: {len(body)}", "Expect: 100-continue")) as connection:
        assert connection.recv(1024) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(1024).startswith(b"HTTP/1.1 200 OK")


def test_a_client_that_wants_another_protocol_is_answered_in_this_one(door: OpenDoor) -> None:
    upgrades = (("Connection: Upgrade", "Upgrade: websocket"), ("Connection: Upgrade, close", "Upgrade: h2c"))
    for upgrade in upgrades:
        with door.raw(head("GET", "/health", *upgrade)) as connection:
            assert connection.recv(1024).startswith(b"HTTP/1.1 200 OK")


def test_a_client_that_never_reads_holds_up_nobody(orders: OpenDoor) -> None:
    for _ in range(8):
        orders.post(URL, {"value": "x" * 2**20, "partition": 0})

    with orders.raw(head("GET", "/topics/orders/partitions/0/messages?max_bytes=16777216") * 20):
        for _ in range(10):
            assert orders.get("/health").status == 200


def test_a_limit_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="streams_max"):
        HttpConfig(streams_max=0)


def test_a_client_that_waits_to_be_told_to_go_on_is_not_left_waiting_after_a_refusal(tmp_path: Path) -> None:
    with OpenDoor(tmp_path) as door:
        expecting = head("POST", "/topics", f"Content-Length: {2 * MIB}", "Expect: 100-continue")
        with door.raw(expecting) as connection:
            raw = receive_all(connection)

    assert refusal(raw)[0] == 413
    assert b"connection: close" in raw
