"""The composition root: the one place that builds a server of threads, broker and doors.

What is opened here is closed here in reverse order, also if the start fails half-way. While the server stops, the
broker keeps ticking and its threads keep syncing: received requests are answered before the connections are closed, and
acknowledged data is on the disk before the logs are sealed.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from goqueue import events
from goqueue.broker.broker import Broker
from goqueue.broker.cluster_of_one import ListeningAddresses
from goqueue.broker.config import BrokerConfig
from goqueue.broker.local_service import LocalService
from goqueue.clock import MS, SECOND, Clock
from goqueue.doors.native.config import NativeConfig
from goqueue.doors.native.door import NativeDoor
from goqueue.errors import GoQueueError
from goqueue.metrics.registry import Metrics
from goqueue.names import VERSION
from goqueue.runtime.adaptive_spin import spin_budget_ns
from goqueue.runtime.entropy import SystemEntropy
from goqueue.server.build import build_facts
from goqueue.server.config import ServerConfig
from goqueue.server.exporting import ExporterThread, close_all
from goqueue.server.loop_lag import LoopLag
from goqueue.server.settings import Address
from goqueue.server.ticker import Ticker
from goqueue.server.workers import ThreadWorkers
from goqueue.service.pending import Pending
from goqueue.service.service import Service
from goqueue.storage.file import OsDisk
from goqueue.tracing.config import TraceConfig
from goqueue.tracing.export import Exporter
from goqueue.tracing.jsonl import JsonlExporter
from goqueue.tracing.stream import StreamExporter

if TYPE_CHECKING:
    from goqueue.server.clustering import ClusteredServer

SETTLE_S = 1.0  # for jobs that no request waits for; a compaction that takes longer is called off


class CannotListen(GoQueueError):
    """An address is in use, not local, or not allowed."""

    code = "CANNOT_LISTEN"

    def __init__(self, door: str, address: Address, reason: str) -> None:
        super().__init__(f"cannot listen on {address} ({door}): {reason}")
        self.door = door
        self.address = str(address)
        self.reason = reason


class Server(NamedTuple):
    """A running server: its addresses, its data directory, its broker, which belongs to the event loop, and what makes
    it a node of a cluster, if it is one.
    """

    native: Address
    http: Address | None
    data: Path
    broker: Broker
    cluster: "ClusteredServer | None" = None


class Door(Protocol):
    """A protocol that the service is offered through."""

    async def start(self, host: str, port: int) -> tuple[str, int]: ...
    async def stop(self, grace_s: float) -> None: ...


@asynccontextmanager
async def running(config: ServerConfig, *, clock: Clock, observe: events.Observer) -> AsyncIterator[Server]:
    """A started server; leaving the block stops it. Recovery blocks the event loop, which is idle until then."""
    loop = asyncio.get_running_loop()
    grace_s = config.drain_grace_ns / SECOND
    data = Path(config.data).absolute()
    async with AsyncExitStack() as opened:
        workers = ThreadWorkers(loop, threads_max=config.limits.threads_max)
        opened.callback(workers.close)

        metrics = Metrics()
        cluster = None
        if config.metadata is not None:
            cluster = await _clustered(config, clock)
            opened.push_async_callback(cluster.close)
            opened.push_async_callback(cluster.stop_cleanly)

        exporters = [ExporterThread(one, loop, clock) for one in _exporters(config, clock)]
        opened.callback(close_all, exporters, clock)
        broker = Broker.open(
            OsDisk(),
            str(data),
            clock=clock,
            workers=workers,
            config=_broker_config(config),
            observe=events.Observers(observe, metrics.observe),
            traces=TraceConfig(enabled=config.traces.enabled, ring=config.traces.ring, topic=config.traces.topic),
            trace_sinks=exporters,
            authority=cluster.authority if cluster is not None else None,
        )
        for exporter in exporters:
            exporter.tell = broker.traces.exported
        opened.callback(broker.close)
        opened.push_async_callback(workers.idle, grace_s=SETTLE_S)
        if cluster is not None:
            cluster.attach(broker, data, observe=broker.observe)

        # Built before the ticker runs: the imports that it needs take up to a second, and would be taken for a stall.
        service = LocalService.of(broker)
        http_door = _http_door(service, clock, config, metrics) if config.http else None
        ticker = Ticker(loop, clock, broker.tick, interval_ns=config.housekeeping.tick_interval_ns)
        opened.callback(ticker.stop)
        broker.wake_at = ticker.wake_at

        doors: list[Door] = []
        opened.push_async_callback(_drain, broker, doors, grace_s)
        native_door = _native_door(service, clock, config)
        metrics.delivery.watch(broker.groups.standings, lambda: broker.delays.stats().by_topic)
        metrics.tracing.watch(broker.traces.recorder.tallies, lambda: broker.traces.recorder.ring.event_count)
        metrics.storage.watch(broker.node.space)
        metrics.cluster.watch(broker.cluster.gauges)
        metrics.event_loop.watch(lambda: len(asyncio.all_tasks(loop)))
        opened.callback(LoopLag(loop, clock, metrics.event_loop.observe_lag).stop)
        metrics.watch_connections({"native": lambda: len(native_door.connections)})
        if cluster is not None:
            await cluster.enter()
        native = await _listen("native", native_door, config.native, doors)
        http = None
        if config.http and http_door:
            http = await _listen("http", http_door, config.http, doors)
        broker.alone.addresses = ListeningAddresses(str(native), str(http or ""))

        if cluster is not None:
            opened.push_async_callback(cluster.hand_over, grace_s)
            await cluster.take_part(native=native, http=http)

        yield Server(native, http, data, broker, cluster)


async def _clustered(config: ServerConfig, clock: Clock) -> "ClusteredServer":
    from goqueue.server.clustering import ClusteredServer  # a broker that is alone starts without it

    try:
        return await ClusteredServer.open(config, clock=clock, entropy=SystemEntropy())
    except OSError as error:
        raise CannotListen("peer", config.cluster.peer, os.strerror(error.errno or 0)) from error


def _broker_config(config: ServerConfig) -> BrokerConfig:
    return BrokerConfig(
        node_id=config.node_id,
        default_partitions=config.topics.partitions,
        topic_defaults=config.topics.settings,
        maintenance_interval_ms=config.housekeeping.maintenance_interval_ns // MS,
        compactions_max=config.limits.compactions_max,
        waiting_max=config.limits.waiting_max,
    )


def _exporters(config: ServerConfig, clock: Clock) -> Iterator[Exporter]:
    settings = config.traces
    if not settings.enabled:
        return
    if settings.jsonl is not None:
        path = str(Path(settings.jsonl).absolute())
        limits = {"max_bytes": settings.jsonl_max_bytes, "keep": settings.jsonl_keep}
        yield JsonlExporter(OsDisk(), path, clock=clock, **limits)
    if settings.stdout:
        yield StreamExporter("stdout", _write_to_stdout)
    if settings.otlp_endpoint is not None:
        from goqueue.tracing.otlp import OtlpExporter  # slow to import, and seldom needed

        yield OtlpExporter(settings.otlp_endpoint, node_id=config.node_id)


def _write_to_stdout(data: bytes) -> None:
    """Bypass `sys.stdout`: a thread that hangs here would hold its lock when the interpreter exits."""
    while data:
        data = data[os.write(1, data) :]


def _native_door(service: Service, clock: Clock, config: ServerConfig) -> NativeDoor:
    limits = NativeConfig(
        connections_max=config.limits.connections_max,
        requests_max=config.limits.requests_max,
        frame_bytes_max=config.limits.frame_bytes_max,
        inbound_bytes_max=config.limits.inbound_bytes_max,
    )
    busy_poll_ns = spin_budget_ns(config.housekeeping.busy_poll_ns)
    return NativeDoor(service, clock=clock, config=limits, node_id=config.node_id, busy_poll_ns=busy_poll_ns)


def _http_door(service: Service, clock: Clock, config: ServerConfig, metrics: Metrics) -> Door:
    from goqueue.doors.http.config import HttpConfig  # dear, and not needed where HTTP is off
    from goqueue.doors.http.context import Build
    from goqueue.doors.http.door import HttpDoor

    limits = HttpConfig(
        cors_origins=config.cors_origins,
        connections_max=config.limits.connections_max,
        streams_max=config.limits.streams_max,
        bodies_bytes_max=config.limits.bodies_bytes_max,
    )
    door = HttpDoor(
        service,
        clock=clock,
        config=limits,
        node_id=config.node_id,
        metrics=metrics.render,
        build=Build(VERSION, *build_facts()),
    )
    metrics.watch_connections({"http": lambda: door.connections_open})
    return door


async def _listen(name: str, door: Door, address: Address, doors: list[Door]) -> Address:
    try:
        bound = await door.start(address.host, address.port)
    except OSError as error:
        number = error.errno or 0  # negative numbers are those of the resolver
        reason = os.strerror(number) if number > 0 else error.strerror or str(error)
        raise CannotListen(name, address, reason) from error
    doors.append(door)
    return Address(*bound)


async def _drain(broker: Broker, doors: list[Door], grace_s: float) -> None:
    """Accept no more requests, answer those that were received, and close the doors."""
    drained = broker.drain()
    await asyncio.gather(*(door.stop(grace_s) for door in doors))
    with suppress(TimeoutError):
        await asyncio.wait_for(_done(drained), grace_s)


async def _done(pending: Pending[None]) -> None:
    done = asyncio.Event()
    pending.then(lambda _: done.set())
    await done.wait()
