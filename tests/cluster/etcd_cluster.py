"""A real etcd for tests: one member or three, on loopback, with its data below a directory of the test.

The program is `GOQUEUE_ETCD`, that of PATH, or what `scripts/get-etcd` brings. Where none can be had, tests that need
one skip, and say why.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import pytest

from goqueue.cluster.etcd_client import EtcdClient, EtcdMember, EtcdMethod, EtcdOptions, EtcdTls
from goqueue.cluster.etcd_messages import build
from goqueue.runtime.entropy import SystemEntropy
from tests.cluster.certificates import Certificates

ROOT = Path(__file__).parents[2]
START_S = 30.0

# What an administrator does, and GoQueue itself never: a subset of etcd's messages, as in etcd_messages.py.
ADMIN = build("""
syntax = "proto3";
package goqueue.etcd.admin;
message Done {}
message CompactionRequest { int64 revision = 1; bool physical = 2; }
message AlarmRequest {
  enum Action { GET = 0; ACTIVATE = 1; DEACTIVATE = 2; }
  enum Type { NONE = 0; NOSPACE = 1; CORRUPT = 2; }
  Action action = 1;
  uint64 member_id = 2;
  Type alarm = 3;
}
message DefragmentRequest {}
message AuthEnableRequest {}
message AuthUserAddRequest { string name = 1; string password = 2; }
message AuthUserGrantRoleRequest { string user = 1; string role = 2; }
message AuthRoleAddRequest { string name = 1; }
message AuthRoleGrantPermissionRequest { string name = 1; Permission perm = 2; }
message Permission {
  enum Type { READ = 0; WRITE = 1; READWRITE = 2; }
  Type type = 1;
  bytes key = 2;
  bytes range_end = 3;
}
""")


@cache
def etcd_program() -> tuple[str, str]:
    """Its path; empty if there is none, and then why."""
    script = [str(ROOT / "scripts" / "get-etcd"), sys.prefix]
    got = subprocess.run(script, capture_output=True, text=True, check=False, timeout=600)
    return ("", got.stderr.strip().rpartition("\n")[2]) if got.returncode else (got.stdout.strip(), "")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Member:
    """One process of etcd."""

    def __init__(self, number: int, directory: Path, ports: Sequence[int]) -> None:
        self.name = f"m{number}"
        self.directory = directory / self.name
        self.client_port, self.peer_port, self.health_port = ports
        self.arguments: list[str | Path] = []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def peer_url(self) -> str:
        return f"http://127.0.0.1:{self.peer_port}"

    def start(self) -> None:
        with (self.directory.parent / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen([*self.arguments], stdout=log, stderr=log)

    def kill(self) -> None:
        """SIGKILL; also if it is paused."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        # The signal is sent, and takes effect a moment later.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def wipe(self) -> None:
        """Lose its disk."""
        self.kill()
        shutil.rmtree(self.directory)

    def is_healthy(self) -> bool:
        """Whether it answers, and has a leader."""
        try:
            with closing(HTTPConnection("127.0.0.1", self.health_port, timeout=1.0)) as connection:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False

    def wait_until_healthy(self) -> None:
        deadline = monotonic() + START_S
        while not self.is_healthy():
            assert self._process is not None
            assert self._process.poll() is None, f"{self.name} has ended: {self.tail_of_log()}"
            assert monotonic() < deadline, f"{self.name} does not start: {self.tail_of_log()}"
            Event().wait(0.03)

    def tail_of_log(self) -> str:
        return (self.directory.parent / f"{self.name}.log").read_text()[-2000:]


class EtcdCluster:
    """A cluster of etcd. `running` starts one, and ends it."""

    def __init__(
        self,
        directory: Path,
        count: int,
        *,
        arguments: Sequence[str] = (),
        is_durable: bool = True,
        certificates: Certificates | None = None,
    ) -> None:
        program, reason = etcd_program()
        if not program:
            pytest.skip(reason)
        self.certificates = certificates
        ports = free_ports(3 * count)
        self.members = [Member(number, directory, ports[3 * number : 3 * number + 3]) for number in range(count)]
        peers = ",".join(f"{member.name}={member.peer_url}" for member in self.members)
        scheme = "https" if certificates else "http"
        for member in self.members:
            url = f"{scheme}://{member.endpoint}"
            member.arguments = [
                program,
                *("--name", member.name, "--data-dir", member.directory, "--log-level", "error", "--logger", "zap"),
                *("--listen-client-urls", url, "--advertise-client-urls", url),
                *("--listen-peer-urls", member.peer_url, "--initial-advertise-peer-urls", member.peer_url),
                *("--listen-metrics-urls", f"http://127.0.0.1:{member.health_port}"),
                *("--initial-cluster", peers, "--initial-cluster-token", directory.name),
                *("--heartbeat-interval", "50", "--election-timeout", "500"),
                *(() if is_durable else ("--unsafe-no-fsync",)),
                *arguments,
            ]
            if certificates is not None:
                certificate, key = certificates.write(member.name)
                member.arguments += ["--cert-file", certificate, "--key-file", key, "--client-cert-auth"]
                member.arguments += ["--trusted-ca-file", certificates.ca_path]

    @classmethod
    @contextmanager
    def running(cls, directory: Path, count: int, **options: Any) -> Iterator["EtcdCluster"]:
        cluster = cls(directory, count, **options)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()

    def start(self) -> None:
        for member in self.members:
            member.start()
        self.wait_until_healthy()

    def wait_until_healthy(self) -> None:
        for member in self.members:
            member.wait_until_healthy()

    def stop(self) -> None:
        for member in self.members:
            member.kill()

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def options(self, **changes: Any) -> EtcdOptions:
        """How to reach all members; `user`, `password`, `endpoints` or `tls` are changed on request."""
        if self.certificates is not None:
            certificate, key = self.certificates.write("node")
            tls = EtcdTls(self.certificates.ca_path.read_bytes(), certificate.read_bytes(), key.read_bytes())
            changes = {"tls": tls, **changes}
        return EtcdOptions(**{"endpoints": self.endpoints, **changes})

    async def leader(self) -> Member:
        """The member that leads now."""
        client = EtcdClient(self.options(), entropy=SystemEntropy())
        try:
            while True:
                for status in await client.statuses(timeout_s=1.0):
                    if isinstance(status, EtcdMember) and status.is_leader:
                        (member,) = (each for each in self.members if each.endpoint == status.endpoint)
                        return member
                await client.pause()
        finally:
            await client.close()


async def administer(options: EtcdOptions, path: str, **fields: Any) -> None:
    """Call a method of etcd such as `KV/Compact`, at the first endpoint."""
    service, _, verb = path.partition("/")
    name = {"Compact": "Compaction", "AuthEnable": "AuthEnable"}.get(verb, ("Auth" * (service == "Auth")) + verb)
    method = EtcdMethod(f"/etcdserverpb.{path}", ADMIN["Done"])
    client = EtcdClient(options, entropy=SystemEntropy())
    try:
        await client.call(method, ADMIN[name + "Request"](**fields), timeout_s=10.0)
    finally:
        await client.close()


class Proxy:
    """A TCP proxy in front of one member. It can lose answers, or everything, and hides both from the client."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.loses_answers = False
        self.answers_lost = 0

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._member.client_port)
        self._writers |= {writer, back}
        for source, target, is_answer in ((reader, back, False), (there, writer, True)):
            task = asyncio.create_task(self._copy(source, target, is_answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, is_answer: bool) -> None:
        try:
            while data := await source.read(65_536):
                if is_answer and self.loses_answers:
                    self.answers_lost += 1
                    continue
                target.write(data)
                await target.drain()
        except ConnectionError:
            pass
        finally:
            target.close()
