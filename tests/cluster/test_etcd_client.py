"""What the client makes of the answers of etcd, and of settings that are wrong. No etcd is needed for that."""

import asyncio
import subprocess
import sys
from time import monotonic

import pytest

from goqueue.cluster.etcd_client import (
    EtcdAnswerTooLarge,
    EtcdFull,
    EtcdMember,
    EtcdOptions,
    EtcdRefused,
    EtcdTls,
    EtcdUnreachable,
    explain,
)
from goqueue.cluster.etcd_log import EtcdMetadataLog, EtcdUnusable, refuse_version
from goqueue.errors import InvalidConfig, MetadataUnavailable
from goqueue.runtime.entropy import SeededEntropy
from tests.cluster.etcd_cluster import free_ports

HERE = "10.0.0.1:2379"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        # From the sources of etcd, and from runs in which members were killed, hung and cut off.
        ("UNAVAILABLE", "etcdserver: no leader"),
        ("UNAVAILABLE", "etcdserver: leader changed"),
        ("UNAVAILABLE", "etcdserver: request timed out"),
        ("UNAVAILABLE", "etcdserver: request timed out, possibly due to previous leader failure"),
        ("UNAVAILABLE", "Socket closed"),
        ("UNAVAILABLE", "Connection reset by peer"),
        ("UNKNOWN", "etcdserver: too many requests"),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded"),
        ("CANCELLED", "history compacted up to revision 7"),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token"),
        ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old"),
        ("INTERNAL", "anything else"),
    ],
)
def test_an_error_leaves_open_what_became_of_the_request(code: str, text: str) -> None:
    error = explain(HERE, code, text)

    assert isinstance(error, EtcdUnreachable)
    assert error.retryable
    assert HERE in str(error)


@pytest.mark.parametrize(
    ("code", "text", "kind", "cure"),
    [
        ("INVALID_ARGUMENT", "etcdserver: request is too large", EtcdRefused, "--max-request-bytes"),
        ("PERMISSION_DENIED", "etcdserver: permission denied", EtcdRefused, "grant the user a role"),
        (
            "INVALID_ARGUMENT",
            "etcdserver: authentication failed, invalid user ID or password",
            EtcdRefused,
            "check both",
        ),
        ("INVALID_ARGUMENT", "etcdserver: user name is empty", EtcdRefused, "set a user and a password"),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", EtcdFull, "etcdctl alarm disarm"),
        (
            "RESOURCE_EXHAUSTED",
            "CLIENT: Received message larger than max (20975000 vs. 16842752)",
            EtcdAnswerTooLarge,
            "too large",
        ),
    ],
)
def test_an_error_that_says_what_became_of_the_request(
    code: str, text: str, kind: type[MetadataUnavailable], cure: str
) -> None:
    error = explain(HERE, code, text)

    assert type(error) is kind
    assert cure in str(error)


@pytest.mark.parametrize("version", ["3.4.20", "3.4.21", "3.5.0", "3.5.3", "3.5.5", "3.3.27", "2.3.8", "unknown"])
def test_versions_that_lose_data_are_refused(version: str) -> None:
    with pytest.raises(EtcdUnusable, match=f"{HERE} has .*{version}"):
        refuse_version(EtcdMember(HERE, version, True, 0, 0, 0, ()))


@pytest.mark.parametrize(
    "version", ["3.4.19", "3.4.22", "3.4.23", "3.5.6", "3.5.26", "3.6.16", "3.7.0-rc.0", "3.8.0", "4.0.0"]
)
def test_versions_that_do_not_are_taken(version: str) -> None:
    refuse_version(EtcdMember(HERE, version, True, 0, 0, 0, ()))


@pytest.mark.parametrize("endpoints", [(), ("etcd",), ("http://etcd:2379",), ("etcd:2379", "user@etcd:2379")])
def test_endpoints_are_hosts_with_ports(endpoints: tuple[str, ...]) -> None:
    with pytest.raises(InvalidConfig, match="endpoints"):
        EtcdOptions(endpoints=endpoints)


def test_a_certificate_has_a_key() -> None:
    with pytest.raises(InvalidConfig, match="certificate"):
        EtcdOptions(endpoints=("etcd:2379",), tls=EtcdTls(b"authority", b"certificate"))


def test_a_password_is_not_shown() -> None:
    options = EtcdOptions(endpoints=("etcd:2379", "[::1]:2379"), user="node", password="not to be seen")

    assert "not to be seen" not in repr(options)


def test_an_etcd_that_does_not_run_is_named() -> None:
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    began_at = monotonic()

    async def run() -> None:
        with pytest.raises(MetadataUnavailable, match=f"etcd at {endpoint} cannot be reached .connection refused"):
            await EtcdMetadataLog.open(EtcdOptions(endpoints=(endpoint,)), "/test", entropy=SeededEntropy(1))

    asyncio.run(run())

    assert monotonic() - began_at < 5.0


def test_a_missing_extra_is_named_and_nothing_else_needs_it() -> None:
    script = """
import asyncio, sys
sys.modules["grpc"] = None
import goqueue.server.assemble
from goqueue.cluster.etcd_client import EtcdNotInstalled, EtcdOptions
from goqueue.cluster.etcd_log import EtcdMetadataLog
from goqueue.runtime.entropy import SystemEntropy
try:
    asyncio.run(EtcdMetadataLog.open(EtcdOptions(endpoints=("etcd:2379",)), "/test", entropy=SystemEntropy()))
except EtcdNotInstalled as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert run.stdout == "metadata in etcd needs grpcio; install it with: pip install 'goqueue[etcd]'\n"
