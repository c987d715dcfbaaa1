"""Real nodes that stand still, come with the wrong disk, meet strangers, or lose their metadata log."""

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Event, Thread
from time import monotonic

import msgspec
import pytest
from msgspec.structs import replace

from goqueue import Client, Consumer
from goqueue.cluster.etcd_client import EtcdOptions
from goqueue.cluster.etcd_log import EtcdMetadataLog
from goqueue.cluster.file_log import FileMetadataLog
from goqueue.cluster.link import Greeting
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.metadata_log import EntryAppended, MetadataEntry, MetadataLog, MetadataSnapshot
from goqueue.cluster.records import (
    FEATURE_LEVEL,
    BrokerChanged,
    BrokerStatus,
    DocumentKind,
    DocumentPut,
    FeatureLevelSet,
    Record,
    encode_batch,
)
from goqueue.errors import GoQueueError, MetadataTooNew, MetadataTrimmed, MetadataUnavailable, NotLeader
from goqueue.runtime.entropy import SystemEntropy
from goqueue.storage.file import OsDisk
from goqueue.wire import frames, verbs
from goqueue.wire.verbs import Verb
from tests.cluster.certificates import Certificates
from tests.cluster.etcd_cluster import EtcdCluster
from tests.crash.cluster_processes import PATIENCE_S, ClusterProcesses, NodeProcess, wait_until

BACK_S = 3.0
"""What is promised, on a machine that does nothing else: these tests print what it was."""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster.running(tmp_path_factory.mktemp("etcd"), 3, is_durable=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three nodes, which each test leaves as they were. All of them have partitions."""
    with ClusterProcesses.over_files(tmp_path_factory.mktemp("cluster")) as cluster:
        with cluster.nodes[1].client() as client:
            client.create_topic("orders", partitions=6)
        yield cluster


def check_it_works(cluster: ClusterProcesses, topic: str) -> None:
    """All nodes are online, and have a topic created."""
    cluster.witness.wait_online(*cluster.nodes)
    for process in cluster.nodes.values():
        with process.client() as client:
            client.create_topic(f"{topic}-{process.node}", partitions=1)
    cluster.wait_agreed()


async def append_records(log: MetadataLog, state: Metadata, *records: Record) -> bool:
    """Append an entry after this state, in the name of the last controller; whether nobody was faster."""
    entry = MetadataEntry(
        state.position.index + 1,
        os.urandom(16),
        state.position.id,
        state.epoch,
        state.controller or 0,
        encode_batch(records),
    )
    if await log.append(entry) != EntryAppended(entry.position):
        return False
    with suppress(MetadataTooNew):
        state.apply(entry)
    return True


# --- a node that stands still --------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.5, 3.0])
def test_a_controller_that_stood_still_steps_down_and_disturbs_nobody(
    cluster: ClusterProcesses, seconds: float
) -> None:
    controller, epoch = cluster.controller, cluster.witness.metadata.epoch
    with controller.client() as client:
        controller.pause()
        stopped_s = monotonic()
        if seconds > 1.5:  # more than the silence after which it is replaced
            elected_s, _ = cluster.witness.wait_for_election(epoch)
            print(f"replaced {elected_s - stopped_s:.2f} s after it stood still")
        Event().wait(max(0.0, stopped_s + seconds - monotonic()))
        controller.resume()
        client.create_topic(f"asked-of-the-old-controller-after-{seconds}")
    check_it_works(cluster, f"stood-still-{seconds}")
    check_nothing_flaps(cluster)


def check_nothing_flaps(cluster: ClusterProcesses) -> None:
    epoch = cluster.witness.metadata.epoch
    Event().wait(2.0)
    assert cluster.witness.metadata.epoch - epoch <= 1  # 0, but on a machine that stands still itself


def test_a_broker_that_stood_still_is_fenced_and_comes_back(cluster: ClusterProcesses) -> None:
    broker = cluster.others[0]
    broker.pause()
    cluster.witness.wait_for(lambda metadata: metadata.brokers[broker.node].is_fenced, "it is fenced")
    broker.resume()
    check_it_works(cluster, "fenced")


def test_all_nodes_that_stood_still_together_go_on(cluster: ClusterProcesses) -> None:
    for process in cluster.nodes.values():
        process.pause()
    Event().wait(2.0)
    for process in cluster.nodes.values():
        process.resume()
    check_it_works(cluster, "all-stood-still")
    check_nothing_flaps(cluster)


# --- a node that is not what it says ---------------------------------------------------------------


def test_the_data_of_another_cluster_are_refused(tmp_path: Path, cluster: ClusterProcesses) -> None:
    with ClusterProcesses.over_files(tmp_path, 1) as other:
        stranger = other.nodes[1]
        assert stranger.stop() == 0
        stranger.metadata = cluster.metadata

        reason = stranger.refused()

        assert "the metadata log belongs to the cluster" in reason
        assert "check the address of the metadata log" in reason


def test_topics_that_the_cluster_does_not_know_are_refused(tmp_path: Path, cluster: ClusterProcesses) -> None:
    alone = cluster.new_node(4, directory=tmp_path)
    alone.metadata = "off"
    alone.start()
    with alone.client() as client:
        client.create_topic("of-its-own")
    assert alone.stop() == 0
    alone.metadata = cluster.metadata

    assert "topics of its own, which that cluster does not know: start the node with an empty data" in alone.refused()


def test_the_data_of_another_node_are_refused(tmp_path: Path, cluster: ClusterProcesses) -> None:
    stranger = cluster.new_node(5, directory=tmp_path)
    shutil.copytree(cluster.nodes[3].data, stranger.data, ignore=shutil.ignore_patterns("lock"))

    assert "belongs to node 3, not to node 5: start it as node 3, or give node 5 a directory" in stranger.refused()


def test_data_without_their_metadata_are_refused(cluster: ClusterProcesses) -> None:
    """Else the node would bring parts of topics into a cluster, or would not say why it cannot."""
    copied = cluster.copy_of(2, "without-metadata")
    shutil.rmtree(copied.data / "metadata")

    assert "no metadata of the cluster that it belongs to: restore its directory" in copied.refused()


def test_the_data_directory_of_a_node_that_runs_is_refused(cluster: ClusterProcesses) -> None:
    second = cluster.new_node(3)

    second.begin()

    assert second.wait_end() == 4
    assert "another process has this data directory open; stop it" in second.last_words()


def test_a_node_id_that_is_in_use_is_refused(tmp_path: Path, cluster: ClusterProcesses) -> None:
    controller, broker = cluster.controller.node, cluster.others[0].node
    imposters = [
        cluster.new_node(controller, directory=tmp_path),
        cluster.new_node(broker, directory=tmp_path),
        cluster.copy_of(controller, "copy-of-controller"),
        cluster.copy_of(broker, "copy-of-broker"),
    ]
    for imposter in imposters:
        imposter.begin()

    for imposter in imposters:
        assert imposter.wait_end() == 6
        assert f"node {imposter.node} is another process at 127.0.0.1:" in imposter.last_words()
        assert "give this node an id of its own, or stop that process" in imposter.last_words()
    check_it_works(cluster, "imposters")


def test_of_two_processes_with_one_id_the_later_one_is_the_node(cluster: ClusterProcesses) -> None:
    first = cluster.others[0]
    first.pause()
    cluster.witness.wait_for(lambda metadata: metadata.brokers[first.node].is_fenced, "it is fenced")
    second = cluster.copy_of(first.node, "of-a-node-that-stands-still")
    second.start()
    cluster.witness.wait_online(first.node)
    cluster.nodes[first.node] = second

    first.resume()

    assert first.wait_end() == 6
    assert f"another process is node {first.node} now" in first.last_words()
    check_it_works(cluster, "two-processes")


def test_an_older_copy_of_a_disk_is_refused(cluster: ClusterProcesses) -> None:
    node = cluster.others[0]
    backup = cluster.copy_of(node.node, "backup")
    node.kill()
    node.start()
    cluster.witness.wait_online(node.node)
    node.kill()

    reason = backup.refused()

    assert f"an older copy of the one that node {node.node} has used since" in reason
    assert "start it once with --disk-replaced" in reason
    node.start()
    check_it_works(cluster, "older-copy")


def test_an_empty_disk_under_an_old_id_is_refused(tmp_path: Path, cluster: ClusterProcesses) -> None:
    lost = cluster.others[0]
    lost.kill()
    empty = cluster.new_node(lost.node, directory=tmp_path)

    reason = empty.refused()

    assert f"node {lost.node} has " in reason
    assert " partitions on another data directory: start it with that one" in reason
    lost.start()
    check_it_works(cluster, "empty-disk")


def test_a_node_does_not_go_on_in_a_metadata_log_of_a_newer_version(tmp_path: Path) -> None:
    """Neither when the record comes, nor when it is started again."""
    with ClusterProcesses.over_files(tmp_path, 1) as cluster:
        node = cluster.nodes[1]
        cluster.witness.close()  # it is of this version, too
        asyncio.run(raise_feature_level(cluster))

        assert node.wait_end() == 6
        assert "was written by a newer version of GoQueue (feature level" in node.last_words()
        assert "update this node" in node.refused()


async def raise_feature_level(cluster: ClusterProcesses) -> None:
    """As a newer version does. The controller may be faster with an entry of its own; then once more."""
    log = await cluster.open_log()
    state, is_appended = Metadata(), False
    while not is_appended:
        for entry in await log.read(state.position.index + 1, 100):
            state.apply(entry)
        broker = state.brokers[1]
        newer = [
            BrokerChanged(1, broker.broker_epoch, BrokerStatus.FENCED),
            replace(broker.registration, incarnation="newer", feature_level_max=FEATURE_LEVEL + 1),
            FeatureLevelSet(FEATURE_LEVEL + 1),
        ]
        is_appended = await append_records(log, state, *newer)
    await log.close()


# --- strangers -----------------------------------------------------------------------------------


GREETING = 1


def greeting_of(cluster_id: str) -> bytes:
    payload = msgspec.msgpack.encode(Greeting(cluster=cluster_id, node=7, incarnation="stranger"))
    return frames.pack_checked(GREETING, 0, b"", payload) + payload


STRANGERS = {
    "garbage": bytes(range(256)) * 64,
    "zeros": bytes(100_000),
    "http": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a hello of a client": frames.pack_checked(Verb.HELLO, 1, verbs.encode(verbs.HelloRequest()), b""),
    "a frame of 33 MB": frames.pack(GREETING, 0, b"", 33 * 1024 * 1024) + bytes(1024),
    "a frame of 4 GB": b"\xff" * 64,
    "another cluster": greeting_of("0" * 32),
    "no cluster": greeting_of(""),
    "half a greeting": greeting_of("0" * 32)[:20],
    "nothing": b"",
}


def until_cut_off(connection: socket.socket) -> bytes:
    """What came before the node ended the connection."""
    received = b""
    with connection, suppress(ConnectionError):
        while data := connection.recv(65_536):
            received += data
    return received


def connect(process: NodeProcess) -> socket.socket:
    host, _, port = process.peer.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def test_strangers_on_the_port_for_nodes_are_cut_off_and_harm_nobody(cluster: ClusterProcesses) -> None:
    epoch = cluster.witness.metadata.epoch
    crowd = [connect(process) for process in cluster.nodes.values() for _ in range(100)]  # slow ones
    sent = []
    for what, data in STRANGERS.items():
        connection = connect(cluster.controller)
        with suppress(ConnectionError):  # it was cut off before all was sent
            connection.sendall(data)
        sent.append((what, connection))
    for connection in crowd:
        connection.send(b"\0")
    check_it_works(cluster, "strangers")

    answers = {what: until_cut_off(connection) for what, connection in sent}
    for connection in crowd:
        assert until_cut_off(connection) == b""

    assert b"this is a node of the cluster" in answers["another cluster"]
    assert answers["nothing"] == b""
    assert max(map(len, answers.values())) < 1_000
    assert cluster.witness.metadata.epoch - epoch <= 1  # 0, but on a machine that stands still itself
    assert not any(process.has_written("Traceback") for process in cluster.nodes.values())


def test_who_has_no_certificate_gets_no_word_in(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificate, key = certificates.write("node")
    files = {
        "GOQUEUE_CLUSTER_CA_FILE": str(certificates.ca_path),
        "GOQUEUE_CLUSTER_CERT_FILE": str(certificate),
        "GOQUEUE_CLUSTER_KEY_FILE": str(key),
    }
    with ClusterProcesses.over_files(tmp_path, 2, env=files) as cluster:
        assert len(cluster.witness.metadata.online()) == 2
        greeting = greeting_of(cluster.witness.metadata.cluster_id)
        plain = connect(cluster.controller)
        plain.sendall(greeting)
        answered = until_cut_off(plain)
        assert cluster.witness.metadata.cluster_id.encode() not in answered
        for context in (certificates.anonymous(), certificates.foreign()):
            with suppress(ssl.SSLError, ConnectionError):
                stranger = context.wrap_socket(connect(cluster.controller), server_hostname="127.0.0.1")
                stranger.sendall(greeting)
                assert until_cut_off(stranger) == b""
        check_it_works(cluster, "later")


# --- the metadata log ----------------------------------------------------------------------------


class Asked(Thread):
    """Has a topic created, and notes what came of it and when."""

    def __init__(self, process: NodeProcess, topic: str) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._topic = topic
        self.error: GoQueueError | None = None
        self.ended_s = 0.0
        self.start()

    def run(self) -> None:
        try:
            with self._process.client() as client:
                client.create_topic(self._topic)
        except GoQueueError as error:
            self.error = error
        self.ended_s = monotonic()


def seconds_until_a_topic_is_created(process: NodeProcess, topic: str) -> float:
    began_s = monotonic()

    def is_created() -> bool:
        try:
            with process.client() as client:
                client.create_topic(topic, exist_ok=True)
        except MetadataUnavailable:
            return False
        return True

    wait_until(is_created, "a topic is created")
    return monotonic() - began_s


class Traffic:
    """Messages that are published to all nodes; on one of them there is a group as well, which has them polled and
    acknowledged: so far a consumer talks to one node.
    """

    def __init__(self, cluster: ClusterProcesses, clients: ExitStack) -> None:
        addresses = [process.native for process in cluster.nodes.values()]
        self._everybody = clients.enter_context(Client(",".join(addresses), timeout=PATIENCE_S))
        self._everybody.create_topic("spread", partitions=2 * len(addresses))
        self._one = clients.enter_context(Client(addresses[0], timeout=PATIENCE_S))
        self._topic = self._topic_led_by(1)
        self._consumer = clients.enter_context(self._member(addresses[0], clients))
        self.messages = 0
        self.flow()

    def _topic_led_by(self, node: int) -> str:
        for number in count():
            topic = f"orders-{number}"
            self._one.create_topic(topic, partitions=1)
            if self._one.cluster.partitions(topic)[0].leader == node:
                return topic
        raise AssertionError

    def _member(self, address: str, clients: ExitStack) -> Consumer:
        """Of a group that this node coordinates."""
        hasty = clients.enter_context(Client(address, timeout="1s"))
        for number in count():
            consumer = hasty.consumer(self._topic, group=f"workers-{number}", mode="shared")
            with suppress(NotLeader):
                consumer.poll(1, timeout="10ms")
                consumer.close()
                return self._one.consumer(self._topic, group=f"workers-{number}", mode="shared")
        raise AssertionError

    def flow(self) -> None:
        """A message for each partition, and one from its producer to its ack."""
        self._everybody.publish_many("spread", [b"message"] * 60)
        self._one.publish(self._topic, b"%d" % self.messages)
        while not (batch := self._consumer.poll(10, timeout="1s")):
            pass
        assert [one.value for one in batch] == [b"%d" % self.messages]
        self._consumer.ack(batch)
        self.messages += 1


def test_without_a_quorum_of_etcd_messages_flow_and_nothing_is_created(tmp_path: Path, etcd: EtcdCluster) -> None:
    with ClusterProcesses.over_etcd(tmp_path, etcd.endpoints, "quorum") as cluster, ExitStack() as clients:
        traffic = Traffic(cluster, clients)
        for member in etcd.members[1:]:
            member.kill()
        cut_s = monotonic()
        asked = [Asked(process, f"meanwhile-{process.node}") for process in cluster.nodes.values()]
        while any(one.is_alive() for one in asked):
            traffic.flow()
        for one in asked:
            assert isinstance(one.error, MetadataUnavailable), one.error
        print(f"{traffic.messages} messages; refused after {max(one.ended_s for one in asked) - cut_s:.1f} s")
        for member in etcd.members[1:]:
            member.start()
        etcd.wait_until_healthy()
        took_s = seconds_until_a_topic_is_created(cluster.nodes[1], "afterwards")
        print(f"a topic was created {took_s:.2f} s after the quorum was back; {BACK_S} s are promised")
        traffic.flow()
        check_it_works(cluster, "later")


def test_a_node_that_was_away_while_the_log_in_etcd_was_trimmed_starts_from_the_snapshot(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    async def trim() -> None:
        options = EtcdOptions(endpoints=etcd.endpoints)
        log = await EtcdMetadataLog.open(options, "/trimmed", entropy=SystemEntropy(), kept_entries=0)
        state = cluster.witness.metadata.copy()
        await log.store_snapshot(MetadataSnapshot(state.position, state.encode()))
        await log.trim(state.position.index)
        with pytest.raises(MetadataTrimmed):
            await log.read(state.position.index - 1, 1)
        await log.close()

    with ClusterProcesses.over_etcd(tmp_path, etcd.endpoints, "trimmed") as cluster:
        away, creating = cluster.others
        away.kill()
        cluster.witness.wait_for(lambda metadata: metadata.brokers[away.node].is_fenced, "it is fenced")
        with creating.client() as client:
            for number in range(10):
                client.create_topic(f"meanwhile-{number}", partitions=1)
        cluster.witness.wait_idle()
        asyncio.run(trim())
        away.start()

        cluster.witness.wait_online(away.node)
        cluster.wait_agreed()
        assert away.has_written("the metadata log was trimmed; went on from a snapshot")
        check_it_works(cluster, "later")


def test_nodes_that_were_away_while_the_log_in_files_was_trimmed_start_from_the_snapshot(tmp_path: Path) -> None:
    async def go_on_without_them() -> None:
        """As a cluster does in a busy week."""
        log = await FileMetadataLog.open(OsDisk(), str(tmp_path / "metadata"), segment_bytes=1024)
        state = cluster.witness.metadata.copy()
        for number in range(40):
            assert await append_records(log, state, DocumentPut(DocumentKind.QUOTA, f"tenant-{number}", bytes(100)))
        await log.store_snapshot(MetadataSnapshot(state.position, state.encode()))
        await log.trim(state.position.index)
        with pytest.raises(MetadataTrimmed):
            await log.read(1, 1)
        await log.close()

    with ClusterProcesses.over_files(tmp_path, 2) as cluster:
        for process in cluster.nodes.values():
            process.kill()
        cluster.witness.wait_idle()
        asyncio.run(go_on_without_them())
        for process in cluster.nodes.values():
            process.begin()
        for process in cluster.nodes.values():
            process.wait_ready()

        check_it_works(cluster, "later")
        with cluster.nodes[1].client() as client:
            assert all(f"tenant-{number}" in client.cluster.metadata() for number in range(40))
        assert all(process.has_written("went on from a snapshot") for process in cluster.nodes.values())


@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """A file system of 1 MB there; the test is skipped where that is not allowed."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "goqueue-test", str(directory)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small disk: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_on_a_full_disk_nothing_is_created_until_there_is_room_again(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "small"),
        ClusterProcesses.over_files(tmp_path, 2, log=tmp_path / "small/log") as cluster,
        ExitStack() as clients,
    ):
        traffic = Traffic(cluster, clients)
        filler = tmp_path / "small/filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(512))
        asked = Asked(cluster.others[0], "meanwhile")
        for number in range(50):
            while asked.is_alive():
                traffic.flow()
            if asked.error is not None:
                break
            asked = Asked(cluster.others[0], f"meanwhile-{number}")  # the last page of the log had room for one more
        assert isinstance(asked.error, MetadataUnavailable), asked.error
        filler.unlink()
        took_s = seconds_until_a_topic_is_created(cluster.nodes[1], "afterwards")
        print(f"a topic was created {took_s:.2f} s after there was room")
        traffic.flow()
        check_it_works(cluster, "later")


def test_a_directory_that_is_no_metadata_log_is_refused(tmp_path: Path) -> None:
    unusable = tmp_path / "file"
    unusable.write_text("not a directory")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "photo.jpg").write_bytes(b"photo")
    for directory in (unusable, foreign):
        node = NodeProcess(1, tmp_path, f"file:{directory}", env={})
        node.begin()

        assert node.wait_end() == 4
        assert str(directory) in node.last_words()
