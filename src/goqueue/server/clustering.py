"""A server that is a node of a cluster: what is built around the broker, and in which order.

    the metadata log is opened, the port for other nodes is bound     before the broker: a wrong setting costs nothing
    the broker is opened; it leads nothing
    the node enters the cluster: it forms or joins it, and reads the metadata log to its end
    the reconciler looks at everything: topics are created and deleted here
    the doors listen                                                  by now topics are what the cluster knows
    the node takes part: it registers, and is told what to lead

It ends in the reverse order: the node hands over what it leads while its doors still answer, and says that it stopped
cleanly once the logs are closed.
"""

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from goqueue import events
from goqueue.broker.broker import Broker
from goqueue.clock import MS, SECOND, Clock
from goqueue.cluster.administration import ClusterDefaults
from goqueue.cluster.cluster_view import ClusterView
from goqueue.cluster.formation import NOTHING, OwnData, OwnTopic
from goqueue.cluster.link import FETCH, CallingNode, Greeting, LinksWithFetches, PeerLinks, PeerServer
from goqueue.cluster.local_copy import LocalCopy
from goqueue.cluster.metadata_log import MetadataLog
from goqueue.cluster.node import Node
from goqueue.cluster.node_authority import NodeAuthority
from goqueue.cluster.node_identity import NodeIdentity
from goqueue.cluster.node_time import SystemTime
from goqueue.cluster.reconciler import Reconciler
from goqueue.cluster.records import BrokerAddresses, Record, TopicRemoved
from goqueue.cluster.replication import Replication
from goqueue.cluster.timing import ClusterTiming
from goqueue.errors import ClusterError, GoQueueError, InvalidConfig
from goqueue.names import VERSION
from goqueue.runtime.entropy import Entropy
from goqueue.server.config import ServerConfig
from goqueue.server.metadata_place import kind_of, open_log, shown_endpoints
from goqueue.server.settings import Address
from goqueue.server.ticker import Ticker
from goqueue.server.workers import ThreadWorkers
from goqueue.storage.directory import METADATA
from goqueue.storage.file import OsDisk

INCARNATION_BYTES: Final = 8
TICK_NS: Final = 250 * MS
ONLINE_S: Final = 5.0
"""How long a start waits for the controller. Without one the node serves what it can, and is not ready."""


class ClusteredServer:
    """The cluster side of one server. `open` begins; then, in this order, `attach`, `enter`, `take_part`, `leave`."""

    def __init__(self, config: ServerConfig, log: MetadataLog, *, clock: Clock, entropy: Entropy) -> None:
        assert config.metadata is not None
        self._config = config
        self._location = config.metadata
        self._clock = clock
        self._entropy = entropy
        self._log = log
        self._incarnation = entropy.bytes(INCARNATION_BYTES).hex()
        self._peer_server = PeerServer(self._greeting, self._answer, answer_fetch=self._answer_fetch)
        # A thread of its own: what the controller decides must not wait behind hundreds of topics that are created.
        self._worker = ThreadWorkers(asyncio.get_running_loop(), threads_max=1)
        tls = _tls(config, is_server=False)
        self._fetch_links = PeerLinks(self._greeting, tls=tls, kind=FETCH)
        self._links = LinksWithFetches(PeerLinks(self._greeting, tls=tls, lost=self._peer_lost), self._fetch_links)
        self._peer: Address | None = None
        self._copy: LocalCopy | None = None
        self._node: Node | None = None
        self._reconciler: Reconciler | None = None
        self._view: ClusterView | None = None
        self._replication: Replication | None = None
        self._ticker: Ticker | None = None
        self._has_looked = False
        self._online: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._removed: set[str] = set()  # topics that the cluster removed while this node was away
        self.authority = NodeAuthority(config.node_id, entropy)

    @classmethod
    async def open(cls, config: ServerConfig, *, clock: Clock, entropy: Entropy) -> "ClusteredServer":
        """Open the metadata log, and listen for other nodes. Raises what is wrong with either, with its cure."""
        assert config.metadata is not None
        log = await open_log(config.metadata, config.etcd, entropy=entropy)
        opened = cls(config, log, clock=clock, entropy=entropy)
        try:
            await opened._listen()
        except BaseException:
            await opened.close()
            raise
        return opened

    async def _listen(self) -> None:
        address = self._config.cluster.peer
        self._peer = Address(
            *await self._peer_server.start(address.host, address.port, tls=_tls(self._config, is_server=True))
        )

    @property
    def peer(self) -> Address:
        """Where other nodes connect."""
        assert self._peer is not None
        return self._peer

    @property
    def node(self) -> Node:
        """The node, once there is a broker."""
        assert self._node is not None
        return self._node

    @property
    def halted(self) -> "asyncio.Future[GoQueueError]":
        """Done with the reason when the server must not go on."""
        return self.node.halted

    # --- the steps of a start --------------------------------------------------------------------

    def attach(self, broker: Broker, data: Path, *, observe: events.Observer) -> None:
        """The broker is open, and leads nothing yet."""
        config = self._config
        copy = self._copy = LocalCopy.open(
            OsDisk(), str(data / METADATA), node=config.node_id, entropy=self._entropy, workers=self._worker
        )
        timing = ClusterTiming()
        nowhere = BrokerAddresses(client="", peer="")  # it is told when it takes part
        identity = NodeIdentity(
            node=config.node_id,
            incarnation=self._incarnation,
            addresses=nowhere,
            version=VERSION,
            rack=config.cluster.rack,
        )
        node = self._node = Node(
            identity,
            self._log,
            self._links,
            copy,
            time=SystemTime(self._clock),
            entropy=self._entropy,
            timing=timing,
            defaults=ClusterDefaults(
                partitions=config.topics.partitions, replication_factor=config.cluster.replication_factor
            ),
            applied=self._applied,
            observe=observe,
            own=NOTHING if copy.cluster_id else _own_data(broker),
            unproven=lambda: _unproven(broker),
            is_disk_replaced=config.cluster.disk_replaced,
        )
        self._reconciler = Reconciler(
            broker.partitions, node.metadata, node=config.node_id, incarnation=self._incarnation
        )
        self._replication = Replication(
            config.node_id,
            copy.directory_id,
            node.metadata,
            broker.partitions,
            self._reconciler,
            self._fetch_links,
            alter=node.alter_in_sync,
            broker_epoch=lambda: node.broker_epoch,
            time=SystemTime(self._clock),
            entropy=self._entropy,
        )
        self.authority.attach(node, self._reconciler.when_done)
        self._view = ClusterView(
            node,
            self.authority.decide,
            node=config.node_id,
            kind=kind_of(self._location),
            endpoints=shown_endpoints(self._location),
            own_health=broker.node.health,
            timing=timing,
            clock=self._clock,
            entropy=self._entropy,
        )
        broker.cluster = self._view

    async def enter(self) -> None:
        """Form or join the cluster, and make the topics here what it knows. Raises `ClusterError`, one sentence."""
        await self.node.enter()
        assert self._reconciler is not None
        self._reconciler.start(self._removed)
        self._has_looked = True
        loop = asyncio.get_running_loop()
        self._ticker = Ticker(loop, self._clock, self._tick, interval_ns=TICK_NS, warns=False)

    async def take_part(self, *, native: Address, http: Address | None) -> None:
        """Register: the doors listen. Returns when the node may lead, or later than that would take with a controller.

        Raises why the node must not go on, if it is told so.
        """
        chosen = self._config.cluster
        addresses = BrokerAddresses(
            client=str(chosen.advertised_native or native),
            peer=str(chosen.advertised_peer or self.peer),
            http=str(chosen.advertised_http or http or ""),
        )
        self.node.take_part(addresses)
        self.authority.reserve()
        await asyncio.wait((self._online, self.halted), timeout=ONLINE_S, return_when=asyncio.FIRST_COMPLETED)
        if self.halted.done():
            raise self.halted.result()

    # --- the steps of an end -----------------------------------------------------------------------

    async def hand_over(self, grace_s: float) -> None:
        """Let other nodes lead what this one leads, while its doors still answer."""
        if self._node is not None and not self._node.halted.done():
            await self._node.hand_over(within_ns=int(grace_s * SECOND))
        self._has_looked = False  # roles do not change any more: the broker is about to close

    async def stop_cleanly(self) -> None:
        """The logs are closed: say so, for the next start."""
        self.authority.close()
        if self._replication is not None:
            self._replication.close()
        if self._ticker is not None:
            self._ticker.stop()
        if self._node is not None and not self._node.halted.done():
            await self._node.stop(controlled=True)

    async def close(self) -> None:
        """End all connections."""
        if self._replication is not None:
            self._replication.close()
        await self._peer_server.stop()
        await self._links.close()
        await self._log.close()
        self._worker.close()

    # --- between the parts -------------------------------------------------------------------------

    def _greeting(self) -> Greeting:
        cluster = self._copy.cluster_id if self._copy is not None else ""
        return Greeting(cluster=cluster, node=self._config.node_id, incarnation=self._incarnation)

    async def _answer(self, peer: CallingNode, request: bytes) -> bytes:
        return await self.node.answer(peer, request)

    async def _answer_fetch(self, peer: CallingNode, request: bytes) -> bytes:
        assert self._replication is not None  # it greets nobody before
        return await self._replication.answer(peer, request)

    def _peer_lost(self, node: int, was_refused: bool) -> None:
        if self._node is not None:
            self._node.peer_lost(node, was_refused)

    def _applied(self, records: Sequence[Record]) -> None:
        if not self._has_looked:  # `Reconciler.start` looks at everything, once the log was read to its end
            self._removed |= {record.id for record in records if isinstance(record, TopicRemoved)}
            return
        assert self._reconciler is not None
        assert self._view is not None
        self._reconciler.applied(records)
        self._view.applied(records)
        if self.node.is_online and not self._online.done():
            self._online.set_result(None)

    def _tick(self) -> None:
        assert self._reconciler is not None
        assert self._replication is not None
        self._reconciler.tick(self._clock.monotonic_ns())
        self._replication.tick()


def _own_data(broker: Broker) -> OwnData:
    """What a broker has that was in no cluster until now: if the node forms one, its topics are those of the cluster.

    Raises `ClusterError` if it has parts of topics only: then it was in a cluster, and knows nothing of it any more.
    """
    found = {topic.id: topic for topic in broker.partitions.catalog}
    topics = []
    for topic in found.values():
        replicas = broker.partitions.any_topic(topic.name).replicas
        if len(replicas) < topic.partition_count:
            raise ClusterError(
                f"this data directory has {len(replicas)} of the {topic.partition_count} partitions of {topic.name}, "
                f"and no metadata of the cluster that it belongs to: restore its directory {METADATA!r} from a backup, "
                f"or start the node with an empty data directory"
            )
        epochs = [replicas[number].epoch for number in range(topic.partition_count)]
        topics.append(
            OwnTopic(
                id=topic.id,
                name=topic.name,
                created_at_ns=topic.created_at_ns,
                leader_epochs=epochs,
                settings=topic.settings,
            )
        )
    return OwnData(topics=topics)


def _unproven(broker: Broker) -> dict[str, tuple[int, ...]]:
    """The replicas that a power cut may have taken records from which they had told to be durable (rule I5): those that
    are not synced before an ack. What `flush=group` had synced, recovery has found, or the topic is quarantined.
    """
    unproven: dict[str, tuple[int, ...]] = {}
    for topic in broker.partitions.catalog:
        if topic.config.flush != "group":
            unproven[topic.id] = tuple(broker.partitions.any_topic(topic.name).replicas)
    return unproven


def _tls(config: ServerConfig, *, is_server: bool) -> ssl.SSLContext | None:
    """Both sides of a connection between nodes show a certificate of the same authority."""
    files = config.cluster
    if files.ca_file is None or files.cert_file is None or files.key_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    for name, path in (("cluster.ca_file", files.ca_file), ("cluster.cert_file", files.cert_file)):
        try:
            if name == "cluster.ca_file":
                context.load_verify_locations(path)
            else:
                context.load_cert_chain(path, files.key_file)
        except (OSError, ssl.SSLError) as error:
            raise InvalidConfig(name, path, f"cannot be used: {error.strerror or error}") from error
    context.verify_mode = ssl.CERT_REQUIRED
    return context
