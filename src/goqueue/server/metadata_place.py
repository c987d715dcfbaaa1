"""Where the metadata log of a cluster is, and how it is opened.

`metadata = "file:DIR"` is a directory that the nodes of one machine share. `metadata = "etcd://HOST:PORT,.../PREFIX"`
is a prefix of keys in etcd: each host is a member, or a name that resolves to all members, as the headless service of
Kubernetes does. Names are looked up once, at the start: a client of etcd tries the members in turn, so it matters which
there are, not which of them are up.
"""

import asyncio
import os
import socket
from pathlib import Path

from goqueue.cluster.file_log import FileMetadataLog
from goqueue.cluster.metadata_log import MetadataLog
from goqueue.errors import InvalidConfig, MetadataUnavailable
from goqueue.runtime.entropy import Entropy
from goqueue.server.config import EtcdSettings
from goqueue.server.settings import Address, EtcdLocation, FileLocation, MetadataLocation
from goqueue.storage.file import OsDisk

FILE, ETCD = "file", "etcd"


def kind_of(location: MetadataLocation) -> str:
    """What holds the log."""
    return FILE if isinstance(location, FileLocation) else ETCD


def shown_endpoints(location: MetadataLocation) -> list[str]:
    """Where it is, for users."""
    if isinstance(location, FileLocation):
        return [str(Path(location.directory).absolute())]
    return [str(endpoint) for endpoint in location.endpoints]


def from_anywhere(location: MetadataLocation) -> MetadataLocation:
    """The location as it can be given in any directory."""
    return FileLocation(os.path.realpath(location.directory)) if isinstance(location, FileLocation) else location


def may_be_same(one: MetadataLocation, other: MetadataLocation) -> bool:
    """Whether two locations can be of one log, as far as their names tell."""
    if isinstance(one, EtcdLocation) and isinstance(other, EtcdLocation):
        return one.prefix == other.prefix and not set(one.endpoints).isdisjoint(other.endpoints)
    return from_anywhere(one) == from_anywhere(other)


async def open_log(
    location: MetadataLocation, etcd: EtcdSettings, *, entropy: Entropy, may_be_damaged: bool = False
) -> MetadataLog:
    """Open the log. Raises `ClusterError`, `DataDirectoryError` or `MetadataUnavailable`, each with its cure.

    One that `may_be_damaged` is opened to be replaced.
    """
    if isinstance(location, FileLocation):
        directory = str(Path(location.directory).absolute())
        return await FileMetadataLog.open(OsDisk(), directory, may_be_damaged=may_be_damaged)
    from goqueue.cluster.etcd_client import EtcdOptions, EtcdTls  # grpcio is an extra
    from goqueue.cluster.etcd_log import EtcdMetadataLog

    tls = None
    authority = _pem("etcd.ca_file", etcd.ca_file)
    if authority is not None:
        tls = EtcdTls(authority, _pem("etcd.cert_file", etcd.cert_file), _pem("etcd.key_file", etcd.key_file))
    endpoints = await _members(location, keep_names=tls is not None)
    options = EtcdOptions(endpoints=endpoints, tls=tls, user=etcd.user, password=etcd.password)
    return await EtcdMetadataLog.open(options, location.prefix, entropy=entropy)


def _pem(setting: str, path: str | None) -> bytes | None:
    try:
        return Path(path).read_bytes() if path is not None else None
    except OSError as error:
        raise InvalidConfig(setting, path, f"cannot be read: {error.strerror}") from error


async def _members(location: EtcdLocation, *, keep_names: bool) -> tuple[str, ...]:
    """The addresses of all members. Over TLS a name stays, unless it stands for several: it is in the certificate."""
    found: dict[str, None] = {}
    for endpoint in location.endpoints:
        addresses = await _resolved(endpoint)
        if len(addresses) == 1 or keep_names:
            addresses = [endpoint]
        found |= dict.fromkeys(map(str, addresses))
    return tuple(found)


async def _resolved(endpoint: Address) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        known = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        reason = error.strerror or str(error)
        raise MetadataUnavailable(f"cannot find the address of etcd at {endpoint}: {reason}; see `metadata`") from error
    return [Address(str(name[0]), endpoint.port) for *_, name in known]
