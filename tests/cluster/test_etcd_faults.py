"""The metadata log on a real etcd that fails: nothing that was answered is lost, and nothing is there twice.

Three members serve most of the tests. Each test leaves them up.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import wraps
from itertools import count
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, Concatenate, ParamSpec, TypeVar

import pytest

from goqueue.cluster import etcd_messages as messages
from goqueue.cluster.etcd_client import TXN, EtcdClient, EtcdMember, EtcdOptions, EtcdTls
from goqueue.cluster.etcd_log import EtcdMetadataLog, EtcdUnusable
from goqueue.cluster.metadata_log import (
    EMPTY,
    EntryAppended,
    EntryUnknown,
    MetadataEntry,
    MetadataLog,
    MetadataSnapshot,
)
from goqueue.errors import MetadataDamaged, MetadataUnavailable
from goqueue.runtime.entropy import SeededEntropy, SystemEntropy
from tests.cluster.certificates import Certificates
from tests.cluster.etcd_cluster import EtcdCluster, Proxy, administer
from tests.cluster.metadata_log_contract import (
    append,
    entry_after,
    numbered,
    read_all,
    run_in,
    take,
    until_settled,
)

P = ParamSpec("P")
T = TypeVar("T")
RECOVERY_S = 5.0
"""The target is 3 s. It takes 1.3 s at most on a machine that does nothing else."""
LARGE = bytes(256 * 1024)
DISARM, NOSPACE, READWRITE = 2, 1, 2  # of etcd's messages
prefixes = (f"/test-{number}" for number in count())


def in_a_loop(
    test: Callable[Concatenate[EtcdCluster, P], Coroutine[None, None, None]],
) -> Callable[Concatenate[EtcdCluster, P], None]:
    """A test as a coroutine; the members are up at its beginning and at its end."""

    @wraps(test)
    def run(cluster: EtcdCluster, *args: P.args, **kwargs: P.kwargs) -> None:
        run_in(None, test(cluster, *args, **kwargs))
        cluster.wait_until_healthy()

    return run


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster.running(tmp_path_factory.mktemp("etcd"), 3) as cluster:
        yield cluster


class Logs:
    """Makes clients of one log, and closes them."""

    def __init__(self, options: EtcdOptions) -> None:
        self.options = options
        self.prefix = next(prefixes)
        self.opened: list[EtcdMetadataLog] = []

    async def connect(self, first_endpoint: int = 0, **options: Any) -> EtcdMetadataLog:
        """A client that begins at this endpoint."""
        size = len(self.options.endpoints)
        seed = next(seed for seed in count() if SeededEntropy(seed).bits(16) % size == first_endpoint)
        log = await EtcdMetadataLog.open(
            self.options, self.prefix, entropy=SeededEntropy(seed), **{"deadline_s": 1.0, **options}
        )
        self.opened.append(log)
        return log


@asynccontextmanager
async def logs_of(options: EtcdOptions) -> AsyncIterator[Logs]:
    logs = Logs(options)
    try:
        yield logs
    finally:
        for log in logs.opened:
            await log.close()


async def append_until(log: MetadataLog, is_over: asyncio.Event) -> list[MetadataEntry]:
    """Append entry after entry, each until its outcome is known."""
    position = await log.tail()
    appended = []
    while not is_over.is_set():
        entry = entry_after(position, b"%d" % position.index)
        assert await until_settled(log, entry) == EntryAppended(entry.position)
        appended.append(entry)
        position = entry.position
    return appended


# Members that die or hang


@in_a_loop
async def test_appends_and_watches_go_on_after_the_leader_died(cluster: EtcdCluster) -> None:
    async with logs_of(cluster.options()) as logs:
        log, other = await logs.connect(0), await logs.connect(1)
        is_over = asyncio.Event()
        appending = asyncio.create_task(append_until(log, is_over))
        watch = other.watch(1)
        await take(watch, 20)

        leader = await cluster.leader()
        leader.kill()
        died_at = monotonic()
        last = await until_answered(other.tail)
        while (await anext(watch)).index <= last.index:
            pass
        took_s = monotonic() - died_at
        is_over.set()
        appended = await appending
        leader.start()

        assert took_s < RECOVERY_S
        assert await read_all(other) == appended


async def until_answered(ask: Callable[[], Coroutine[None, None, T]]) -> T:
    """Ask until there is an answer."""
    while True:
        try:
            return await ask()
        except MetadataUnavailable:
            continue


@in_a_loop
async def test_without_a_quorum_an_append_is_in_doubt_and_afterwards_it_is_there_once(cluster: EtcdCluster) -> None:
    async with logs_of(cluster.options()) as logs:
        log, other = await logs.connect(0), await logs.connect(0)
        entries = await numbered(log, 3)
        watch = other.watch(1)
        assert await take(watch, 3) == entries
        entry = entry_after(entries[-1].position, b"in doubt")

        for member in cluster.members[1:]:
            member.kill()
        assert await log.append(entry) == EntryUnknown(entry.position)
        with pytest.raises(MetadataUnavailable):  # a stale answer would be a lie
            await other.tail()
        assert await log.append(entry) == EntryUnknown(entry.position)
        for member in cluster.members[1:]:
            member.start()
        cluster.wait_until_healthy()
        back_at = monotonic()

        assert await until_settled(log, entry) == EntryAppended(entry.position)
        assert await take(watch, 1) == [entry]
        assert monotonic() - back_at < RECOVERY_S
        assert await read_all(other) == [*entries, entry]


@in_a_loop
async def test_a_stream_of_a_member_without_a_leader_ends(cluster: EtcdCluster) -> None:
    """It would be silent for ever, and still answer requests for progress."""
    client = EtcdClient(cluster.options(endpoints=cluster.endpoints[:1]), entropy=SystemEntropy())
    stream = await client.watch(messages.WatchCreateRequest(key=b"key"), timeout_s=1.0)

    for member in cluster.members[1:]:
        member.pause()
    with pytest.raises(MetadataUnavailable, match="no leader"):
        assert await stream.read(timeout_s=5.0) is None
    for member in cluster.members[1:]:
        member.resume()

    await client.close()


@in_a_loop
async def test_an_append_in_doubt_loses_to_the_one_that_was_first_after_the_outage(cluster: EtcdCluster) -> None:
    async with logs_of(cluster.options()) as logs:
        log, other = await logs.connect(0), await logs.connect(2)
        entries = await numbered(log, 2)
        mine, theirs = (entry_after(entries[-1].position, batch) for batch in (b"mine", b"theirs"))

        for member in cluster.members:
            member.pause()
        outcomes = await asyncio.gather(log.append(mine), other.append(theirs))
        assert outcomes == [EntryUnknown(mine.position), EntryUnknown(theirs.position)]
        for member in cluster.members:
            member.resume()

        settled = await asyncio.gather(until_settled(log, mine), until_settled(other, theirs))
        won = [
            entry for entry, outcome in zip((mine, theirs), settled, strict=True) if isinstance(outcome, EntryAppended)
        ]
        assert len(won) == 1
        assert await read_all(log) == [*entries, *won]


@in_a_loop
async def test_what_was_answered_survives_the_death_of_all_members(cluster: EtcdCluster) -> None:
    async with logs_of(cluster.options()) as logs:
        log, other = await logs.connect(0), await logs.connect(1)
        watch = other.watch(1)
        entries = await append(log, *(bytes([number]) * 5_000 for number in range(50)))
        await log.store_snapshot(MetadataSnapshot(entries[9].position, LARGE))

        for member in cluster.members:
            member.kill()
        for member in cluster.members:
            member.start()
        cluster.wait_until_healthy()
        back_at = monotonic()
        later = await numbered(log, 2)

        assert await take(watch, 52) == [*entries, *later] == await read_all(other)
        assert monotonic() - back_at < RECOVERY_S
        assert await other.load_snapshot() == MetadataSnapshot(entries[9].position, LARGE)


@in_a_loop
async def test_a_watch_leaves_a_member_that_hangs(cluster: EtcdCluster) -> None:
    async with logs_of(cluster.options()) as logs:
        leader = await cluster.leader()
        hung, healthy = (n for n, member in enumerate(cluster.members) if member is not leader)
        log, other = await logs.connect(healthy), await logs.connect(hung)
        watch = other.watch(1)
        entries = await numbered(log, 2)
        assert await take(watch, 2) == entries

        cluster.members[hung].pause()
        hung_at = monotonic()
        later = await append(log, b"later")
        seen = await take(watch, 1)
        noticed_s = monotonic() - hung_at
        cluster.members[hung].resume()

        assert seen == later
        assert noticed_s < RECOVERY_S


@in_a_loop
async def test_calls_leave_a_leader_that_hangs(cluster: EtcdCluster) -> None:
    async with logs_of(cluster.options()) as logs:
        leader = await cluster.leader()
        log = await logs.connect(cluster.members.index(leader))
        entries = await numbered(log, 2)
        entry = entry_after(entries[-1].position)

        leader.pause()
        hung_at = monotonic()
        settled = await until_settled(log, entry)
        read = await read_all(log)
        took_s = monotonic() - hung_at
        leader.resume()

        assert settled == EntryAppended(entry.position)
        assert read == [*entries, entry]
        assert took_s < RECOVERY_S


@in_a_loop
async def test_a_node_that_hears_of_later_entries_restarts_its_watch(cluster: EtcdCluster) -> None:
    async with logs_of(cluster.options()) as logs:
        leader = await cluster.leader()
        hung, healthy = (n for n, member in enumerate(cluster.members) if member is not leader)
        log, other = await logs.connect(healthy), await logs.connect(hung)
        watch = other.watch(1)
        entries = await numbered(log, 2)
        assert await take(watch, 2) == entries
        waiting = asyncio.create_task(take(watch, 1))

        cluster.members[hung].pause()
        later = await append(log, b"later")
        told_at = monotonic()
        other.restart_watches()
        seen = await waiting
        took_s = monotonic() - told_at
        cluster.members[hung].resume()

        assert seen == later
        assert took_s < 1.5  # silence is noticed after 2 s


# Answers that are lost


@in_a_loop
async def test_an_append_whose_answer_is_lost_is_found_at_another_member(cluster: EtcdCluster) -> None:
    proxy = Proxy(cluster.members[0])
    await proxy.start()
    async with logs_of(cluster.options(endpoints=(proxy.endpoint, cluster.members[1].endpoint))) as logs:
        log = await logs.connect(0)
        entries = await numbered(log, 3)
        entry = entry_after(entries[-1].position, b"answer lost")

        proxy.loses_answers = True
        outcome = await log.append(entry)

        assert proxy.answers_lost
        assert outcome == EntryAppended(entry.position)
        assert await read_all(log) == [*entries, entry]
    await proxy.stop()


@in_a_loop
async def test_an_append_whose_answers_are_all_lost_is_in_doubt_and_there_once(cluster: EtcdCluster) -> None:
    proxy = Proxy(cluster.members[0])
    await proxy.start()
    async with logs_of(cluster.options(endpoints=(proxy.endpoint,))) as logs, logs_of(cluster.options()) as others:
        log = await logs.connect()
        others.prefix = logs.prefix
        other = await others.connect(1)
        entries = await numbered(log, 3)
        entry = entry_after(entries[-1].position, b"answer lost")

        proxy.loses_answers = True
        assert await log.append(entry) == EntryUnknown(entry.position)
        assert await read_all(other) == [*entries, entry]
        later = await append(other, b"later")
        proxy.loses_answers = False
        proxy.cut()

        assert await until_settled(log, entry) == EntryAppended(entry.position)
        assert await read_all(log) == [*entries, entry, *later]
    await proxy.stop()


@in_a_loop
async def test_a_watch_has_no_gap_after_its_history_was_compacted(cluster: EtcdCluster) -> None:
    proxy = Proxy(cluster.members[0])
    await proxy.start()
    async with logs_of(cluster.options(endpoints=(proxy.endpoint,))) as watching, logs_of(cluster.options()) as logs:
        log = await logs.connect()
        watching.prefix = logs.prefix
        watch = (await watching.connect()).watch(1)
        entries = await numbered(log, 3)
        assert await take(watch, 3) == entries

        proxy.loses_answers = True
        later = await numbered(log, 10)
        revision = await compact(cluster)
        proxy.loses_answers = False
        proxy.cut()

        assert await take(watch, 10) == later
        client = EtcdClient(cluster.options(), entropy=SystemEntropy())
        request = messages.WatchCreateRequest(key=b"k", start_revision=revision - 1)
        stream = await client.watch(request, timeout_s=1.0)
        with pytest.raises(MetadataUnavailable, match="compacted"):
            await stream.read(timeout_s=1.0)
        await client.close()
    await proxy.stop()


async def compact(cluster: EtcdCluster) -> int:
    """Forget the whole history; the revision that is left."""
    client = EtcdClient(cluster.options(), entropy=SystemEntropy())
    answer = await client.call(TXN, messages.TxnRequest(), timeout_s=1.0)
    await client.close()
    revision: int = answer.header.revision
    await administer(cluster.options(), "KV/Compact", revision=revision, physical=True)
    return revision


# Space


def test_a_full_etcd_says_so_and_loses_nothing(tmp_path: Path) -> None:
    """etcd carries a transaction out and then says that it is full, or it says so before: both are found out."""

    async def run(cluster: EtcdCluster) -> None:
        async with logs_of(cluster.options()) as logs:
            log, other = await logs.connect(kept_entries=0), await logs.connect()
            entries: list[MetadataEntry] = []
            while True:
                entry = entry_after(entries[-1].position if entries else EMPTY, LARGE)
                try:
                    assert await log.append(entry) == EntryAppended(entry.position)
                    entries.append(entry)
                    await log.store_snapshot(MetadataSnapshot(entry.position, b"state"))
                except MetadataUnavailable as error:
                    assert "etcdctl alarm disarm" in str(error)
                    break
            if entry in entries:
                entry = entry_after(entry.position, LARGE)
            with pytest.raises(MetadataUnavailable, match="NOSPACE"):
                await log.append(entry)
            assert await read_all(other) == entries
            (member,) = await other.members()
            assert isinstance(member, EtcdMember)
            assert member.is_full

            # A trim needs no space; the rest is for the operator.
            await log.trim(len(entries) - 1)
            await compact(cluster)
            await administer(cluster.options(), "Maintenance/Defragment")
            with pytest.raises(MetadataUnavailable, match="NOSPACE"):
                await log.append(entry)
            member_id = int(member.errors[0].partition("memberID:")[2].split()[0])
            disarm = {"action": DISARM, "member_id": member_id, "alarm": NOSPACE}
            await administer(cluster.options(), "Maintenance/Alarm", **disarm)

            assert await log.append(entry) == EntryAppended(entry.position)
            assert await read_all(other, len(entries)) == [entries[-1], entry]

    with EtcdCluster.running(tmp_path, 1, is_durable=False, arguments=("--quota-backend-bytes", "2500000")) as cluster:
        run_in(None, run(cluster))


# Users


def test_tokens_that_expired_are_replaced(tmp_path: Path) -> None:
    async def run(cluster: EtcdCluster) -> None:
        await add_user(cluster, b"/test", b"/tesu")
        async with logs_of(cluster.options(user="node", password="right")) as logs:
            log, other = await logs.connect(), await logs.connect()
            watch = other.watch(1)
            entries = await numbered(log, 2)
            assert await take(watch, 2) == entries

            # They live for a second.
            Event().wait(2.5)
            later = await numbered(log, 2)
            assert await take(watch, 2) == later

            # No member knows any token after a restart.
            cluster.members[0].kill()
            cluster.start()
            last = await numbered(log, 2)
            assert await take(watch, 2) == last
            assert await read_all(other) == [*entries, *later, *last]

        for changes, sentence in (
            ({"user": "node", "password": "wrong"}, "refuses the user or the password"),
            ({"user": "nobody", "password": "right"}, "refuses the user or the password"),
            ({}, "asks for a user"),
            ({"user": "other", "password": "right"}, "grant the user a role"),
        ):
            async with logs_of(cluster.options(**changes)) as logs:
                with pytest.raises(MetadataUnavailable, match=sentence):
                    await logs.connect()

    with EtcdCluster.running(tmp_path, 1, is_durable=False, arguments=("--auth-token-ttl", "1")) as cluster:
        run_in(None, run(cluster))


async def add_user(cluster: EtcdCluster, first: bytes, end: bytes) -> None:
    """Ask for users from now on: `root`, `node` with rights on these keys, and `other` without any."""
    options = cluster.options()
    for name in ("root", "node", "other"):
        await administer(options, "Auth/UserAdd", name=name, password="right")
        await administer(options, "Auth/RoleAdd", name=name)
        await administer(options, "Auth/UserGrantRole", user=name, role=name)
    rights = {"type": READWRITE, "key": first, "range_end": end}
    await administer(options, "Auth/RoleGrantPermission", name="node", perm=rights)
    await administer(options, "Auth/AuthEnable")


def test_a_user_is_no_use_where_there_are_none(tmp_path: Path) -> None:
    async def run(cluster: EtcdCluster) -> None:
        async with logs_of(cluster.options(user="node", password="right")) as logs:
            with pytest.raises(MetadataUnavailable, match="etcdctl auth enable"):
                await logs.connect()

    with EtcdCluster.running(tmp_path, 1, is_durable=False) as cluster:
        run_in(None, run(cluster))


# TLS


def test_members_and_nodes_prove_who_they_are(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    foreign = Certificates(tmp_path / "foreign")

    async def run(cluster: EtcdCluster) -> None:
        options = cluster.options()
        tls = options.tls
        assert tls is not None
        async with logs_of(options) as logs:
            log, other = await logs.connect(), await logs.connect()
            entries = await numbered(log, 2)
            assert await take(other.watch(1), 2) == entries
        certificate, key = (path.read_bytes() for path in foreign.write("stranger"))
        for wrong, sentence in (
            (tls._replace(authority=foreign.ca_path.read_bytes()), "check the CA file"),
            (EtcdTls(tls.authority), "refuses the client certificate"),
            (EtcdTls(tls.authority, certificate, key), "refuses the client certificate"),
            (None, "TLS"),
        ):
            async with logs_of(cluster.options(tls=wrong)) as logs:
                with pytest.raises(MetadataUnavailable, match=sentence):
                    await logs.connect()

    certificates = Certificates(tmp_path)
    with EtcdCluster.running(tmp_path, 1, is_durable=False, certificates=certificates) as cluster:
        run_in(None, run(cluster))


def test_tls_with_a_member_that_has_none(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)

    async def run(cluster: EtcdCluster) -> None:
        tls = EtcdTls(certificates.ca_path.read_bytes())
        async with logs_of(cluster.options(tls=tls)) as logs:
            with pytest.raises(MetadataUnavailable, match="does not speak TLS"):
                await logs.connect()

    with EtcdCluster.running(tmp_path, 1, is_durable=False) as cluster:
        run_in(None, run(cluster))


# Logs that are not what they were


def test_members_that_lost_their_disks_are_not_taken_for_the_log(tmp_path: Path) -> None:
    """Two of three form an empty cluster, with the same id, and nobody in etcd says that anything is wrong."""

    async def run(cluster: EtcdCluster) -> None:
        async with logs_of(cluster.options()) as logs:
            log, other = await logs.connect(), await logs.connect()
            watch = other.watch(1)
            entries = await numbered(log, 3)
            assert await take(watch, 3) == entries

            for member in cluster.members:
                member.kill()
            for member in cluster.members[1:]:
                member.wipe()
                member.start()
            for member in cluster.members[1:]:
                member.wait_until_healthy()

            for ask in (log.tail, log.load_snapshot, lambda: log.read(1, 10), lambda: log.trim(2)):
                with pytest.raises(MetadataDamaged, match="emptied, restored or replaced"):
                    await until_answered(ask)
            with pytest.raises(MetadataDamaged):
                await log.append(entry_after(entries[-1].position))
            with pytest.raises(MetadataDamaged):
                await log.append(entry_after(EMPTY))
            with pytest.raises(MetadataDamaged):
                await anext(watch)

    with EtcdCluster.running(tmp_path, 3, is_durable=False) as cluster:
        run_in(None, run(cluster))


@in_a_loop
async def test_a_log_that_went_back_ends_its_watches(cluster: EtcdCluster) -> None:
    proxy = Proxy(cluster.members[0])
    await proxy.start()
    async with logs_of(cluster.options(endpoints=(proxy.endpoint,))) as watching, logs_of(cluster.options()) as logs:
        log = await logs.connect()
        watching.prefix = logs.prefix
        watch = (await watching.connect()).watch(1)
        entries = await numbered(log, 2)
        assert await take(watch, 2) == entries
        waiting = asyncio.create_task(take(watch, 1))
        assert [*entries, *await append(log, b"to be lost")] == [*entries, *await waiting]

        # As a backup of the time after the second entry has it.
        prefix = logs.prefix.encode()
        await put(cluster, delete=b"%s/log/%016x" % (prefix, 3))
        await put(cluster, prefix + b"/tail", (2).to_bytes(8, "big") + entries[1].id)
        proxy.cut()

        with pytest.raises(MetadataDamaged, match="went back"):
            await anext(watch)
    await proxy.stop()


@in_a_loop
async def test_other_keys_are_not_taken_for_a_log(cluster: EtcdCluster) -> None:
    async with logs_of(cluster.options()) as logs:
        await put(cluster, f"{logs.prefix}/some/key".encode(), b"of somebody else")

        with pytest.raises(EtcdUnusable, match="choose another prefix"):
            await logs.connect()


@in_a_loop
async def test_a_log_of_a_later_format_is_left_alone(cluster: EtcdCluster) -> None:
    async with logs_of(cluster.options()) as logs:
        await put(cluster, f"{logs.prefix}/meta".encode(), b"goqueue metadata log, format 2, id 00")

        with pytest.raises(EtcdUnusable, match="format 2; this version reads 1: update GoQueue"):
            await logs.connect()


async def put(cluster: EtcdCluster, key: bytes = b"", value: bytes = b"", *, delete: bytes = b"") -> None:
    """Write a key, or delete one, without the log."""
    client = EtcdClient(cluster.options(), entropy=SystemEntropy())
    operation = messages.RequestOp(put=messages.PutRequest(key=key, value=value))
    if delete:
        operation = messages.RequestOp(delete_range=messages.DeleteRangeRequest(key=delete))
    await client.call(TXN, messages.TxnRequest(success=[operation]), timeout_s=1.0)
    await client.close()
