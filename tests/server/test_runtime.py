"""`goqueue serve` as a process: how it says that it is ready, how it stops, and how it says that it cannot start."""

import json
import os
import signal
import socket
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from goqueue.clock import SECOND
from goqueue.server import runtime
from goqueue.server.runtime import ExitCode
from goqueue.wire import verbs
from goqueue.wire.frames import FrameFlags
from goqueue.wire.verbs import Verb
from tests.server.served import Peer, Served, refused, serving


def ports(data: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((data / "ports.json").read_text())
    return content


def test_one_line_says_that_it_is_ready_and_ports_json_says_the_same(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served:
        host, port = served.address
        pid = served.process.pid

        assert served.line == f"goqueue ready native={host}:{port} http=off data={tmp_path / 'data'} pid={pid}\n"
        assert ports(tmp_path / "data") == {"native": {"host": host, "port": port}, "http": None, "pid": pid}
        with Peer(served.address) as peer:
            assert peer.ask(Verb.PING, verbs.Empty())

        code, output, _ = served.stop()

    assert (code, output) == (ExitCode.STOPPED, "")
    assert not (tmp_path / "data" / "ports.json").exists()


def test_both_doors_are_open_on_ports_that_the_system_chose(tmp_path: Path) -> None:
    with serving(tmp_path, "--http", "127.0.0.1:0") as served:
        host, _, port = served.facts["http"].rpartition(":")

        socket.create_connection((host, int(port))).close()
        assert ports(tmp_path)["http"] == {"host": host, "port": int(port)}

        assert served.stop()[0] == ExitCode.STOPPED


def test_the_connections_of_each_door_are_counted(tmp_path: Path) -> None:
    with serving(tmp_path, "--http", "127.0.0.1:0") as served, Peer(served.address):
        host, _, port = served.facts["http"].rpartition(":")
        with closing(HTTPConnection(host, int(port), timeout=10)) as connection:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()

        assert 'broker_active_connections{door="native"} 1.0' in text
        assert 'broker_active_connections{door="http"} 1.0' in text
        assert served.stop()[0] == ExitCode.STOPPED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_and_what_was_acknowledged_is_there_after_a_restart(
    tmp_path: Path, number: signal.Signals
) -> None:
    sent = [b"%d" % value for value in range(200)]
    with serving(tmp_path) as served, Peer(served.address) as peer:
        peer.create_topic("orders")
        for value in sent:
            peer.send_batch("orders", [value])
        peer.receive()
        served.signal(number)
        acked = 1
        while frame := peer.receive():
            acked += not frame.flags & FrameFlags.ERROR

        code, _, errors = served.finish()

    assert code == ExitCode.STOPPED
    assert [json.loads(line)["message"] for line in errors.splitlines()][-2:] == ["stopping", "stopped"]
    with serving(tmp_path) as served, Peer(served.address) as peer:
        stored = peer.values("orders")
    assert acked <= len(stored)
    assert stored == sent[: len(stored)]


def test_answers_that_are_owed_are_given_before_it_stops(tmp_path: Path) -> None:
    with serving(tmp_path) as served, Peer(served.address) as peer:
        peer.create_topic("orders")
        for _ in range(100):
            peer.send_batch("orders", [b"x" * 1000])
        peer.send(Verb.PING, verbs.Empty())
        while (frame := peer.receive()) and frame.kind != Verb.PING:
            pass  # by now the broker has taken all of them in
        served.signal(signal.SIGTERM)
        while peer.receive():
            pass

        assert served.finish()[0] == ExitCode.STOPPED

    with serving(tmp_path) as served, Peer(served.address) as peer:
        assert len(peer.values("orders")) == 100


def test_whoever_waits_for_a_record_is_answered_and_does_not_hold_it_up(tmp_path: Path) -> None:
    with serving(tmp_path, env={"GOQUEUE_DRAIN_GRACE": "1h"}) as served, Peer(served.address) as peer:
        peer.create_topic("orders")
        peer.send(Verb.READ, verbs.ReadRequest("orders", 0, wait_ms=60_000))
        peer.ask(Verb.PING, verbs.Empty())
        served.signal(signal.SIGTERM)

        frame = peer.receive()

        assert frame
        assert frame.kind == Verb.READ
        assert served.finish()[0] == ExitCode.STOPPED


def test_a_kill_leaves_nothing_that_keeps_it_from_starting(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        assert served.facts
        served.signal(signal.SIGKILL)
        served.finish()
    assert "native" in ports(tmp_path)

    with serving(tmp_path) as served:
        assert ports(tmp_path)["pid"] == served.process.pid
        assert served.stop()[0] == ExitCode.STOPPED


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, env={"GOQUEUE_DRAIN_GRACE": "1h"}) as served, Peer(served.address) as peer:
        peer.create_topic("orders")
        peer.send_batch("orders", [b"x" * 8_000_000])
        peer.receive()
        for _ in range(50):  # answers that nobody takes, so that it has something to wait for
            peer.send(Verb.READ, verbs.ReadRequest("orders", 0))
        served.signal(signal.SIGTERM)
        served.wait_for_log("stopping")

        served.signal(signal.SIGTERM)

        assert served.finish()[0] == 128 + signal.SIGTERM


def test_a_second_server_on_the_same_data_says_that_they_are_taken(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        before = ports(tmp_path)

        code, errors = refused("--data", str(tmp_path), "--native", "127.0.0.1:0", "--http", "off")

        assert code == ExitCode.DATA_UNUSABLE
        last = json.loads(errors.splitlines()[-1])
        assert last["level"] == "critical"
        assert (
            last["message"]
            == f"{tmp_path}: another process has this data directory open; stop it, or use another directory"
        )
        assert ports(tmp_path) == before
        assert first.stop()[0] == ExitCode.STOPPED


def test_a_foreign_file_in_the_data_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    code, errors = refused("--data", str(tmp_path), "--native", "127.0.0.1:0", "--http", "off")

    assert code == ExitCode.DATA_UNUSABLE
    assert f"{tmp_path}/notes.txt: not a file of GoQueue" in errors
    assert sorted(os.listdir(tmp_path)) == ["notes.txt"]


def test_a_damaged_topic_does_not_stop_the_others(tmp_path: Path) -> None:
    with serving(tmp_path) as served, Peer(served.address) as peer:
        for topic in ("orders", "payments"):
            peer.create_topic(topic)
            peer.send_batch(topic, [b"a"])
            peer.receive()
        served.stop()
    (tmp_path / "topics/orders/topic.json").write_text("{}")

    with serving(tmp_path) as served, Peer(served.address) as peer:
        line = served.wait_for_log("topic quarantined; repair its files or move them out, then restart")
        assert line["topic"] == "orders"
        assert f"{tmp_path}/topics/orders/topic.json" in str(line["reason"])
        assert peer.values("payments") == [b"a"]
        assert served.stop()[0] == ExitCode.STOPPED

    (tmp_path / "topics/payments/topic.json").write_text("{}")
    code, errors = refused("--data", str(tmp_path), "--native", "127.0.0.1:0", "--http", "off")
    assert code == ExitCode.DAMAGED
    assert f"{tmp_path}/topics/orders/topic.json: damaged" in errors


def test_a_data_directory_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    code, errors = refused("--data", str(tmp_path / "file"), "--native", "127.0.0.1:0", "--http", "off")

    assert code == ExitCode.DATA_UNUSABLE
    assert str(tmp_path / "file") in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("door", ["native", "http"])
def test_a_port_that_is_taken_is_named_and_the_data_are_given_back(tmp_path: Path, door: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        doors = {"native": "127.0.0.1:0", "http": "off", door: f"127.0.0.1:{port}"}

        code, errors = refused("--data", str(tmp_path), "--native", doors["native"], "--http", doors["http"])

    assert code == ExitCode.CANNOT_LISTEN
    message = json.loads(errors.splitlines()[-1])["message"]
    assert message == f"cannot listen on 127.0.0.1:{port} ({door}): Address already in use"
    with serving(tmp_path) as served:
        assert served.stop()[0] == ExitCode.STOPPED


@pytest.mark.parametrize("address", ["203.0.113.1:7000", "no-such-host.invalid:7000"])
def test_an_address_that_is_not_ours_is_named(tmp_path: Path, address: str) -> None:
    code, errors = refused("--data", str(tmp_path), "--native", address, "--http", "off")

    assert code == ExitCode.CANNOT_LISTEN
    assert f"cannot listen on {address} (native): " in errors


def test_a_wrong_configuration_is_refused_with_everything_that_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "goqueue.toml"
    file.write_text('[log]\nlevl = "debug"\n')

    code, errors = refused(
        "--config", str(file), "--native", "off", env={"GOQUEUE_NODE_ID": "first", "GOQUEUE_DATA": str(tmp_path / "d")}
    )

    assert code == ExitCode.BAD_CONFIGURATION
    assert errors.splitlines() == [
        "error the configuration has 3 errors",
        f"  log.levl = 'debug' ({file}: log.levl): there is no such setting; did you mean log.level?",
        "  node_id = 'first' (GOQUEUE_NODE_ID): must be a whole number from 0 to 65535",
        "  native = 'off' (--native): must be HOST:PORT, such as 127.0.0.1:7000 or [::1]:7000",
    ]
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file or directory"), (b"\xff", "is not UTF-8")])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "goqueue.toml"
    if content is not None:
        file.write_bytes(content)

    code, errors = refused(env={"GOQUEUE_CONFIG": str(file)})

    assert code == ExitCode.BAD_CONFIGURATION
    assert f"file = '{file}' (--config or GOQUEUE_CONFIG): {reason}" in errors


def test_the_log_is_json_where_nobody_looks_and_warns_of_what_looks_like_a_slip(tmp_path: Path) -> None:
    with serving(tmp_path, env={"GOQUEUE_LOG_LEVL": "debug"}) as served:
        _, _, errors = served.stop()

    lines = [json.loads(line) for line in errors.splitlines()]
    assert lines[0]["level"] == "warning"
    assert lines[0]["message"] == "GOQUEUE_LOG_LEVL is no setting of the server; did you mean GOQUEUE_LOG_LEVEL?"
    assert {"ts", "level", "logger", "message"} <= lines[-1].keys()


def test_whoever_listens_to_others_is_warned(tmp_path: Path) -> None:
    with serving(tmp_path, "--native", "0.0.0.0:0") as served:
        assert (
            served.wait_for_log(
                "listening on a public address without authentication: every client can read and write everything"
            )["door"]
            == "native"
        )


def test_it_may_have_as_many_files_open_as_the_system_allows(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        limits = Path(f"/proc/{served.process.pid}/limits").read_text().splitlines()

    (soft, hard) = next(line.split()[3:5] for line in limits if line.startswith("Max open files"))
    assert soft == hard


def test_the_exit_codes_are_documented() -> None:
    documented = [line.split()[0] for line in (runtime.__doc__ or "").splitlines() if line.startswith("    ")]

    assert [code for code in documented if code.isdecimal()] == [str(code.value) for code in ExitCode]


def test_it_costs_next_to_nothing_when_idle(tmp_path: Path) -> None:
    with serving(tmp_path) as served, Peer(served.address) as peer:
        peer.create_topic("orders")
        before_ns = _cpu_ns(served)
        peer.ask(Verb.READ, verbs.ReadRequest("orders", 0, wait_ms=2_000))

        used_ns = _cpu_ns(served) - before_ns

    assert used_ns < 0.03 * 2 * SECOND  # it is below 1 % where nobody else disturbs


def _cpu_ns(served: Served) -> int:
    return int(Path(f"/proc/{served.process.pid}/schedstat").read_text().split()[0])
