"""The metadata log in etcd keeps the contract, on a real one."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count

import pytest

from goqueue.cluster import etcd_messages as messages
from goqueue.cluster.etcd_client import TXN, EtcdClient
from goqueue.cluster.etcd_log import EtcdMetadataLog
from goqueue.cluster.metadata_log import BATCH_BYTES_MAX, MetadataLog, MetadataSnapshot
from goqueue.runtime.entropy import SystemEntropy
from tests.cluster.etcd_cluster import EtcdCluster
from tests.cluster.metadata_log_contract import MetadataLogContract, NewLog, append, numbered, read_all, run_in, take

numbers = count()


class EtcdLogUnderTest:
    """A log below a prefix of its own."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self.cluster = cluster
        self.prefix = f"/test-{next(numbers)}"
        self.logs: list[EtcdMetadataLog] = []

    async def connect(self, *, kept_entries: int = 0) -> MetadataLog:
        log = await EtcdMetadataLog.open(
            self.cluster.options(), self.prefix, entropy=SystemEntropy(), deadline_s=1.0, kept_entries=kept_entries
        )
        self.logs.append(log)
        return log

    async def damage(self, index: int) -> None:
        key = f"{self.prefix}/log/{index:016x}".encode()
        (answer,) = await self.execute(messages.RequestOp(range=messages.RangeRequest(key=key)))
        raw = bytearray(answer.range.kvs[0].value)
        raw[-1] ^= 1
        await self.execute(messages.RequestOp(put=messages.PutRequest(key=key, value=bytes(raw))))

    async def keys(self, below: str) -> list[str]:
        """The names of the keys below this one."""
        first, end = (f"{self.prefix}/{below}{last}".encode() for last in "/0")
        every = messages.RequestOp(range=messages.RangeRequest(key=first, range_end=end, keys_only=True))
        (answer,) = await self.execute(every)
        return [pair.key.removeprefix(first).decode() for pair in answer.range.kvs]

    async def execute(self, operation: messages.Message) -> list[messages.Message]:
        """Do this in etcd, without the log."""
        client = EtcdClient(self.cluster.options(), entropy=SystemEntropy())
        answer = await client.call(TXN, messages.TxnRequest(success=[operation]), timeout_s=1.0)
        await client.close()
        return list(answer.responses)

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


def test_entries_that_do_not_fit_in_one_answer_are_read_in_several(cluster: EtcdCluster) -> None:
    async def run() -> None:
        under_test = EtcdLogUnderTest(cluster)
        log, other = await under_test.connect(), await under_test.connect()
        entries = await append(log, *(bytes([number]) * BATCH_BYTES_MAX for number in range(20)))

        assert await read_all(other) == entries
        assert await take(log.watch(1), 20) == entries

        await under_test.close()

    run_in(None, run())


def test_chunks_of_old_snapshots_are_deleted(cluster: EtcdCluster) -> None:
    async def run() -> None:
        under_test = EtcdLogUnderTest(cluster)
        log = await under_test.connect()
        for entry in await numbered(log, 5):
            await log.store_snapshot(MetadataSnapshot(entry.position, bytes([entry.index]) * 1_000_000))

        directories = [key.partition("/")[0] for key in await under_test.keys("snap")]
        assert len(set(directories)) == 2  # of the newest one, and of the one before: it may still be read
        assert len(directories) == 4

        await under_test.close()

    run_in(None, run())


def test_a_snapshot_is_whole_while_it_is_replaced(cluster: EtcdCluster) -> None:
    async def run() -> None:
        under_test = EtcdLogUnderTest(cluster)
        log, other = await under_test.connect(), await under_test.connect()
        entries = await numbered(log, 20)
        snapshots = {entry.index: MetadataSnapshot(entry.position, bytes([entry.index]) * 900_000) for entry in entries}
        await log.store_snapshot(snapshots[1])

        async def store() -> None:
            for snapshot in snapshots.values():
                await log.store_snapshot(snapshot)

        storing = asyncio.create_task(store())
        last = 0
        while last < len(snapshots):
            loaded = await other.load_snapshot()
            assert loaded is not None
            assert loaded == snapshots[loaded.position.index]
            assert last <= loaded.position.index
            last = loaded.position.index
        await storing

        await under_test.close()

    run_in(None, run())


def test_a_trim_leaves_some_entries_to_those_that_are_late(cluster: EtcdCluster) -> None:
    async def run() -> None:
        under_test = EtcdLogUnderTest(cluster)
        log = await under_test.connect(kept_entries=5)
        entries = await numbered(log, 20)
        await log.store_snapshot(MetadataSnapshot(entries[14].position, b"state"))

        await log.trim(16)

        assert [int(key, 16) for key in await under_test.keys("log")] == list(range(11, 21))
        assert await read_all(log, 11) == entries[10:]

        await under_test.close()

    run_in(None, run())
