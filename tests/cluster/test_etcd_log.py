"""The metadata log in etcd keeps the contract, on a real one."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count

import pytest

from goqueue.cluster import etcd_messages as messages
from goqueue.cluster.etcd_client import TXN, EtcdClient
from goqueue.cluster.etcd_log import EtcdMetadataLog
from goqueue.cluster.metadata_log import MetadataLog
from goqueue.runtime.entropy import SystemEntropy
from tests.cluster.etcd_cluster import EtcdCluster
from tests.cluster.metadata_log_contract import MetadataLogContract, NewLog

numbers = count()


class EtcdLogUnderTest:
    """A log below a prefix of its own."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self.cluster = cluster
        self.prefix = f"/test-{next(numbers)}"
        self.logs: list[EtcdMetadataLog] = []

    async def connect(self) -> MetadataLog:
        options = self.cluster.options()
        log = await EtcdMetadataLog.open(options, self.prefix, entropy=SystemEntropy(), deadline_s=1.0, kept_entries=0)
        self.logs.append(log)
        return log

    async def damage(self, index: int) -> None:
        key = f"{self.prefix}/log/{index:016x}".encode()
        client = EtcdClient(self.cluster.options(), entropy=SystemEntropy())
        get = messages.TxnRequest(success=[messages.RequestOp(range=messages.RangeRequest(key=key))])
        answer = await client.call(TXN, get, timeout_s=1.0)
        raw = bytearray(answer.responses[0].range.kvs[0].value)
        raw[-1] ^= 1
        put = messages.RequestOp(put=messages.PutRequest(key=key, value=bytes(raw)))
        await client.call(TXN, messages.TxnRequest(success=[put]), timeout_s=1.0)
        await client.close()

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        for member in self.cluster.members:
            member.pause()
        try:
            yield
        finally:
            for member in self.cluster.members:
                member.resume()

    async def close(self) -> None:
        for log in self.logs:
            await log.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster.running(tmp_path_factory.mktemp("etcd"), 1, is_durable=False) as cluster:
        yield cluster


class TestEtcdLog(MetadataLogContract):
    @pytest.fixture
    def new_log(self, cluster: EtcdCluster) -> NewLog:
        return partial(EtcdLogUnderTest, cluster)
