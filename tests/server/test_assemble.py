"""Five thousand connections, most of them up to no good: the others notice nothing, and memory stays bounded."""

import resource
import socket
from pathlib import Path

from goqueue import Client
from goqueue.wire import frames, verbs
from goqueue.wire.verbs import Verb
from tests.server.served import Served, serving

CONNECTIONS = 5_000
MEMORY_BYTES_MAX = 100 * 1024 * 1024
LOG_LINES_MAX = 200
HELLO = frames.pack(Verb.HELLO, 1, verbs.encode(verbs.HelloRequest()))
CLAIM = (32 * 1024 * 1024).to_bytes(4) + bytes([Verb.PUBLISH]) + bytes(11) + b"x" * 2_000
OPENINGS = (
    b"",  # says nothing
    HELLO[:7],  # half a frame
    b"GET / HTTP/1.1\r\n\r\n",  # speaks something else
    HELLO + b"\xff\xff\xff\xff" + bytes(12),  # claims 4 GiB
    HELLO + CLAIM,  # claims 32 MiB and sends 2 KiB of it
    HELLO + frames.pack(200, 2, b"\x90"),  # asks for what nobody knows
)


def memory_bytes(served: Served) -> int:
    pages = int(Path(f"/proc/{served.process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_thousands_of_hostile_connections_cost_little_and_harm_nobody(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd: list[socket.socket] = []
    try:
        with serving(tmp_path / "data") as served, Client(served.facts["native"], timeout="10s") as client:
            client.create_topic("orders", flush="interval")
            client.publish("orders", b"before")
            before = memory_bytes(served)

            for number in range(min(CONNECTIONS, hard - 500)):
                one = socket.create_connection(served.address)
                one.sendall(OPENINGS[number % len(OPENINGS)])
                crowd.append(one)
                if number % 500 == 0:
                    client.publish("orders", b"%d" % number)
            for number in range(100):
                client.publish("orders", b"%d" % number)

            assert memory_bytes(served) - before < MEMORY_BYTES_MAX
            assert sum(1 for _ in client.read("orders")) == 1 + len(crowd) // 500 + 100
            for one in crowd:
                one.close()
            client.publish("orders", b"after")
            code, _, log = served.stop()
    finally:
        for one in crowd:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert code == 0
    assert 0 < len(log.splitlines()) < LOG_LINES_MAX
    assert "more like this" in log
