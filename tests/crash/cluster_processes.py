"""A cluster of real `goqueue serve` processes that a test may kill, freeze and restart, and a witness of its log.

The witness follows the metadata log from the first entry on, beside the nodes: it says when an entry came, and checks
that the log is what it has to be. It waits for a fact of the log as a test waits for anything: until a deadline.
"""

import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Condition, Event, Thread
from time import monotonic
from typing import NamedTuple, Self, TypeVar

from goqueue import Client
from goqueue.clock import SECOND
from goqueue.cluster.file_log import FileMetadataLog
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.metadata_log import EMPTY, MetadataEntry, MetadataLog
from goqueue.cluster.records import ControllerElected, Record, TopicAdded, TopicRemoved, decode_batch
from goqueue.errors import GoQueueError
from goqueue.storage.file import OsDisk

PATIENCE_S = 60.0
"""For whatever comes in a second on a machine that has nothing else to do."""
LOOK_S = 0.02

T = TypeVar("T")
OpenLog = Callable[[], Awaitable[MetadataLog]]


def wait_until(fact: Callable[[], object], what: str, *, patience_s: float = PATIENCE_S) -> float:
    """Wait until the function says so; how long that took."""
    began_s = monotonic()
    while not fact():
        assert monotonic() < began_s + patience_s, f"in {patience_s:g} s not: {what}"
        Event().wait(LOOK_S)
    return monotonic() - began_s


# --- the log -------------------------------------------------------------------------------------


class Witnessed(NamedTuple):
    """An entry, and when it came."""

    at_s: float
    entry: MetadataEntry
    records: list[Record]


class Witness:
    """Follows the metadata log in a thread of its own."""

    def __init__(self, open_log: OpenLog) -> None:
        self._open_log = open_log
        self._news = Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, daemon=True)
        self._task: asyncio.Task[None] | None = None
        self.seen: list[Witnessed] = []
        self.metadata = Metadata()
        self.failure: BaseException | None = None
        self._thread.start()

    def close(self) -> None:
        """Follow no more."""
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(lambda: self._task.cancel() if self._task else None)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._follow())
            except asyncio.CancelledError:
                pass
            except BaseException as error:
                with self._news:
                    self.failure = error
                    self._news.notify_all()

    async def _follow(self) -> None:
        self._task = asyncio.current_task()
        log = await self._open_log()
        try:
            async for entry in log.watch(1):
                records = decode_batch(entry.batch)
                with self._news:
                    self.metadata.apply(entry)
                    self.seen.append(Witnessed(monotonic(), entry, records))
                    self._news.notify_all()
        finally:
            await log.close()

    # --- what the log says -----------------------------------------------------------------------

    @property
    def controller(self) -> int | None:
        return self.metadata.controller

    @property
    def elections(self) -> list[tuple[float, ControllerElected]]:
        """When which controller was elected."""
        return [
            (at_s, record) for at_s, _, records in list(self.seen) for record in of_kind(records, ControllerElected)
        ]

    def wait_for(self, fact: Callable[[Metadata], object], what: str, *, patience_s: float = PATIENCE_S) -> None:
        """Wait until the applied state is so."""
        with self._news:
            is_so = self._news.wait_for(lambda: self.failure or fact(self.metadata), patience_s)
            assert self.failure is None, self.failure
            assert is_so, f"in {patience_s:g} s not: {what}; but\n" + "\n".join(self.metadata.dump())

    def wait_for_election(self, after_epoch: int, *, patience_s: float = PATIENCE_S) -> tuple[float, ControllerElected]:
        """The first election of a later epoch, and when it came."""
        self.wait_for(lambda metadata: metadata.epoch > after_epoch, "another controller", patience_s=patience_s)
        return next((at_s, record) for at_s, record in self.elections if record.epoch > after_epoch)

    def wait_online(self, *nodes: int, patience_s: float = PATIENCE_S) -> None:
        """Wait until these nodes are online, under a controller."""
        self.wait_for(
            lambda metadata: metadata.controller is not None and set(nodes) <= set(metadata.online()),
            f"nodes {nodes} online",
            patience_s=patience_s,
        )

    def wait_idle(self) -> None:
        """Wait until everything that is in the log was witnessed."""

        async def tail() -> int:
            log = await self._open_log()
            index = (await log.tail()).index
            await log.close()
            return index

        index = asyncio.run(tail())
        self.wait_for(lambda metadata: metadata.position.index >= index, f"entry {index}")

    def check(self) -> None:
        """The log is one chain, each epoch has one author, every entry took effect, no topic was made twice."""
        assert self.failure is None, self.failure
        after, epoch, author = EMPTY, 0, -1
        names: set[str] = set()
        topics: dict[str, str] = {}
        for _, entry, records in list(self.seen):
            assert entry.after == after, f"entry {entry.index} does not follow {after}"
            after = entry.position
            for elected in of_kind(records, ControllerElected):
                assert elected.epoch == epoch + 1, f"entry {entry.index}: epoch {elected.epoch} after {epoch}"
                epoch, author = elected.epoch, elected.node
            assert entry.epoch == epoch, f"entry {entry.index} of epoch {entry.epoch} in epoch {epoch}"
            assert entry.node == author or not epoch, f"entry {entry.index} of node {entry.node} in {author}'s epoch"
            for record in records:
                if isinstance(record, TopicAdded):
                    assert record.name not in names, f"{record.name} was created twice"
                    topics[record.id] = record.name
                    names.add(record.name)
                elif isinstance(record, TopicRemoved):
                    names.remove(topics.pop(record.id))

    def created(self) -> Counter[str]:
        """How often each topic was created."""
        return Counter(record.name for _, _, records in list(self.seen) for record in of_kind(records, TopicAdded))


def of_kind(records: Sequence[Record], kind: type[T]) -> list[T]:
    return [record for record in records if isinstance(record, kind)]


# --- the nodes -----------------------------------------------------------------------------------


class NodeProcess:
    """One node: the same id and data directory in all of its lives, and the same ports after the first."""

    def __init__(self, node: int, directory: Path, metadata: str, *, env: dict[str, str]) -> None:
        self.node = node
        self.data = directory / f"node-{node}"
        self.complaints = directory / f"node-{node}.stderr"
        self.metadata = metadata
        self.env = env
        self.native = self.peer = "127.0.0.1:0"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def begin(self) -> None:
        """Start it, and wait for nothing."""
        command = [sys.executable, "-m", "goqueue.cli", "serve", "--data", str(self.data), "--http", "off"]
        command += ["--node-id", str(self.node), "--native", self.native, "--log-level", "info"]
        if self.metadata != "off":
            command += ["--metadata", self.metadata, "--peer", self.peer]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GOQUEUE_")}
        with self.complaints.open("ab") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=clean | self.env)

    def wait_ready(self) -> None:
        """Wait until it serves."""
        line = self._first_line()
        assert line.startswith("goqueue ready "), f"node {self.node}: {self.last_words()}"
        facts = dict(fact.split("=", 1) for fact in line.split()[2:])
        self.native, self.peer = facts["native"], facts.get("peer", self.peer)

    def start(self) -> None:
        self.begin()
        self.wait_ready()

    def _first_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline_s, line = monotonic() + PATIENCE_S, b""
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline_s - monotonic()))
            assert readable, f"node {self.node} is not ready in {PATIENCE_S:g} s: {self.last_words()}"
            read = os.read(self._process.stdout.fileno(), 4096)
            if not read:
                break
            line += read
        return line.decode()

    def kill(self) -> None:
        """As `kill -9` does; also if it stands still."""
        if self._process is not None:
            self._process.kill()
            self.wait_end()

    def pause(self) -> None:
        """Let it stand still, as a machine that swaps does; it does when this returns."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> int:
        """End it in order: its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self.wait_end()

    def wait_end(self) -> int:
        """Wait until it has ended by itself: its exit code."""
        assert self._process is not None
        assert self._process.stdout is not None
        code = self._process.wait(PATIENCE_S)
        self._process.stdout.close()
        return code

    def refused(self) -> str:
        """Start it; it must end by itself, maybe when it registers: the last line that it has written."""
        self.begin()
        assert self.wait_end() == 6, self.last_words()
        return self.last_words()

    def last_words(self) -> str:
        """The last line on its standard error."""
        lines = self.written().splitlines()
        return lines[-1] if lines else ""

    def written(self) -> str:
        """All lines on its standard error, of all of its lives."""
        return self.complaints.read_text(errors="replace") if self.complaints.exists() else ""

    def has_written(self, text: str) -> bool:
        return text in self.written()

    def cpu_s(self) -> float:
        """The processor time of its threads, of those that live."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / SECOND

    @contextmanager
    def client(self, timeout_s: float = PATIENCE_S) -> Iterator[Client]:
        """A client of this node alone."""
        with Client(self.native, timeout=timeout_s, connect_timeout=timeout_s) as client:
            yield client

    def applied_index(self) -> int:
        with self.client() as client:
            return client.cluster.state().metadata.applied_index


class ClusterProcesses:
    """Some nodes over one metadata log. `running` starts them, and ends whatever is left of them."""

    def __init__(self, directory: Path, metadata: str, open_log: OpenLog) -> None:
        self.directory = directory
        self.metadata = metadata
        self.open_log = open_log
        self.nodes: dict[int, NodeProcess] = {}
        self._made: list[NodeProcess] = []  # others of the same ids included
        self._witness: Witness | None = None

    @classmethod
    @contextmanager
    def over_files(
        cls, directory: Path, count: int = 3, *, log: Path | None = None, env: dict[str, str] | None = None
    ) -> Iterator[Self]:
        """Nodes over a metadata log in files."""
        log = log or directory / "metadata"
        cluster = cls(directory, f"file:{log}", lambda: FileMetadataLog.open(OsDisk(), str(log)))
        with cluster._running(count, env=env):
            yield cluster

    @classmethod
    @contextmanager
    def over_etcd(cls, directory: Path, endpoints: Sequence[str], prefix: str, count: int = 3) -> Iterator[Self]:
        """Nodes over a metadata log in etcd."""
        directory.mkdir(exist_ok=True)

        async def open_log() -> MetadataLog:
            from goqueue.cluster.etcd_client import EtcdOptions
            from goqueue.cluster.etcd_log import EtcdMetadataLog
            from goqueue.runtime.entropy import SystemEntropy

            return await EtcdMetadataLog.open(
                EtcdOptions(endpoints=tuple(endpoints)), f"/{prefix}", entropy=SystemEntropy()
            )

        cluster = cls(directory, f"etcd://{','.join(endpoints)}/{prefix}", open_log)
        with cluster._running(count):
            yield cluster

    @contextmanager
    def _running(self, count: int, *, env: dict[str, str] | None = None) -> Iterator[None]:
        with ExitStack() as ending:
            ending.callback(self._end)
            for node in range(1, count + 1):
                self.nodes[node] = self.new_node(node, env=env)
                self.nodes[node].begin()
            for process in self.nodes.values():
                process.wait_ready()
            self._witness = Witness(self.open_log)
            ending.callback(self._witness.close)
            self.witness.wait_online(*self.nodes)
            yield
            self.witness.check()

    def _end(self) -> None:
        for process in self._made:
            process.kill()

    def new_node(self, node: int, *, directory: Path | None = None, env: dict[str, str] | None = None) -> NodeProcess:
        """A node that is not started; `directory` is where its data directory is, or will be."""
        made = NodeProcess(node, directory or self.directory, self.metadata, env=env or {})
        self._made.append(made)
        return made

    def copy_of(self, node: int, name: str) -> NodeProcess:
        """Another process of that node, with a copy of its data directory as it is now."""
        directory = self.directory / name
        directory.mkdir()
        copied = self.new_node(node, directory=directory)
        shutil.copytree(self.nodes[node].data, copied.data, ignore=shutil.ignore_patterns("lock", "ports.json"))
        return copied

    @property
    def witness(self) -> Witness:
        assert self._witness is not None
        return self._witness

    @property
    def controller(self) -> NodeProcess:
        """The node that is the controller, by the log."""
        controller = self.witness.controller
        assert controller is not None
        return self.nodes[controller]

    @property
    def others(self) -> list[NodeProcess]:
        """The nodes that are not the controller."""
        return [process for node, process in self.nodes.items() if node != self.witness.controller]

    def wait_agreed(self) -> None:
        """Wait until all nodes that run have applied the log to its end, and have the same state."""

        def agree() -> bool:
            index = self.witness.metadata.position.index
            found = set()
            for process in self.nodes.values():
                if process.is_running:
                    with process.client() as client:
                        found.add(client.cluster.metadata())
                    if process.applied_index() < index:
                        return False
            return len(found) == 1

        wait_until(agree, "all nodes have the same metadata")


class Creator(Thread):
    """Creates topics through one node, one after the other, and notes what it was told."""

    def __init__(self, process: NodeProcess, prefix: str) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._prefix = prefix
        self._is_over = Event()
        self.created: list[str] = []
        self.in_doubt: list[str] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._is_over.is_set():
                self._create(f"{self._prefix}-{len(self.created) + len(self.in_doubt)}")
        except BaseException as error:
            self.failure = error

    def _create(self, name: str) -> None:
        try:
            with self._process.client() as client:
                while not self._is_over.is_set():
                    client.create_topic(name, partitions=1)
                    self.created.append(name)
                    name = f"{self._prefix}-{len(self.created) + len(self.in_doubt)}"
        except GoQueueError as error:
            # The node was killed, or nobody could decide in time: whether it was created is not known.
            if not error.retryable:
                raise
            self.in_doubt.append(name)
            wait_until(lambda: self._is_over.is_set() or self._process.is_running, "the node is started again")

    def finish(self) -> None:
        self._is_over.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        assert self.failure is None, self.failure


@contextmanager
def creators(processes: Sequence[NodeProcess], prefix: str = "fire") -> Iterator[list[Creator]]:
    """Topics are created through these nodes, all the time."""
    started = [Creator(process, f"{prefix}-{process.node}") for process in processes]
    for one in started:
        one.start()
    try:
        yield started
    finally:
        for one in started:
            one.finish()


def check_creations(witness: Witness, started: Sequence[Creator]) -> None:
    """What was answered is there, once; what is in doubt is there once at most."""
    counts = witness.created()
    for one in started:
        assert one.created, "nothing was created"
        assert [name for name in one.created if counts[name] != 1] == []
        assert [name for name in one.in_doubt if counts[name] > 1] == []
