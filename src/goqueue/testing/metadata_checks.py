"""What must hold for the metadata of a simulated cluster, whatever happens to it: M1-M6 of the design, and R3-R5.

    M1  no two entries are at one index, and there is no gap
    M2  every node has applied a prefix of the log, and nodes at one position have one state
    M3  one process appends per epoch, and none after it applied a higher epoch
    M4  a snapshot and the entries after it give the state of the whole log
    M5  what was answered `EntryAppended` is in the log for good; what was answered `EntryLost` never was, nor will be
    M6  a broker epoch belongs to one process: no other one acts under it, and no older one of the node
    R3  a decision is appended after exactly the entries that it was computed on
    R4  one append is in flight
    R5  after an append that was lost or in doubt, nothing is decided before its index is occupied and applied
    A   what an administrator was told is true: done once, or not at all

The checks have a state of their own, which applies each entry as soon as it is in the log. They also see each call of
an author, because an error there may leave no trace in the log: an `ObservedLog` is between each node and its log.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from goqueue.cluster.link import CallingNode
from goqueue.cluster.messages import (
    AlterPartitions,
    AnyAdminAnswer,
    AnyAdminRequest,
    PartitionsAltered,
    ProducerIdBlock,
    decode_answer,
    decode_message,
)
from goqueue.cluster.metadata import Metadata
from goqueue.cluster.metadata_log import (
    EMPTY,
    AppendOutcome,
    EntryAppended,
    EntryLost,
    MetadataEntry,
    MetadataLog,
    MetadataPosition,
    MetadataSnapshot,
)
from goqueue.cluster.records import (
    BrokerRegistered,
    ControllerElected,
    PartitionChanged,
    Record,
    RequestDone,
    TopicAdded,
    TopicRemoved,
    decode_batch,
)
from goqueue.errors import ClusterError, MetadataUnavailable
from goqueue.testing.simulated_metadata_log import SimulatedEngine
from goqueue.testing.simulated_process import SimulatedProcess
from goqueue.testing.simulation_transcript import SimulationTranscript


@dataclass(slots=True, eq=False)
class MetadataAuthor:
    """A process that may append. `applied` is the state of its node, once there is one."""

    node: int
    incarnation: str
    process: SimulatedProcess
    applied: Metadata | None = None
    in_flight: MetadataEntry | None = None
    unsettled: MetadataEntry | None = None  # was lost, or is in doubt


class MetadataChecks:
    """All checks of one cluster. `broken` are the sentences about what did not hold."""

    def __init__(self, engine: SimulatedEngine, transcript: SimulationTranscript) -> None:
        self.broken: list[str] = []
        self.state = Metadata()
        """After all entries of the log."""
        self._engine = engine
        self._transcript = transcript
        self._authors: dict[bytes, MetadataAuthor] = {}  # by the id of the entry
        self._winners: dict[int, MetadataAuthor] = {}  # by epoch
        self._appended: dict[bytes, MetadataPosition] = {}  # answered so, and not seen yet
        self._lost: set[bytes] = set()
        self._index_of: dict[bytes, int] = {}
        self._states: list[bytes] = [self.state.encode()]  # by index
        self._entries: list[MetadataEntry] = []
        self._incarnations: dict[int, dict[int, str]] = {}  # node -> broker epoch -> incarnation
        self._done: dict[str, tuple[int, RequestDone]] = {}  # request id -> index
        self._partitions: dict[tuple[str, int, int], int] = {}  # topic id, partition, partition epoch -> index
        self._producer_numbers: dict[int, str] = {}

    def _break(self, rule: str, what: str) -> None:
        self.broken.append(f"{rule}: {what}")
        self._transcript.note(f"BROKEN {rule}: {what}")

    # --- what authors do -----------------------------------------------------------------------------

    def appending(self, author: MetadataAuthor, entry: MetadataEntry) -> None:
        """The author sends the entry."""
        who = f"node {author.node}"
        self._authors.setdefault(entry.id, author)
        if self._authors[entry.id] is not author and self._authors[entry.id].node != author.node:
            self._break("M5", f"{who} appends an id of node {self._authors[entry.id].node}")
        if author.in_flight is not None:
            self._break("R4", f"{who} appends {entry.index} while its append of {author.in_flight.index} is in flight")
        author.in_flight = entry
        applied, unsettled = author.applied, author.unsettled
        if applied is None:
            return
        if unsettled is not None and unsettled.id == entry.id:
            if unsettled != entry:
                self._break("R5", f"{who} appends other bytes under the id of entry {entry.index}")
            return
        if unsettled is not None and applied.position.index < unsettled.index:
            self._break("R5", f"{who} decides anew while it does not know what became of its entry {unsettled.index}")
        if entry.after != applied.position:
            self._break("R3", f"{who} appends entry {entry.index}, but has applied {applied.position.index}")
        if entry.epoch < applied.epoch:
            self._break("M3", f"{who} appends under epoch {entry.epoch}, but has applied epoch {applied.epoch}")

    def outcome(self, author: MetadataAuthor, entry: MetadataEntry, outcome: AppendOutcome | None) -> None:
        """The author is told what became of the entry; None if it did not wait for it."""
        author.in_flight = None
        if isinstance(outcome, EntryAppended):
            author.unsettled = None
            self._appended[entry.id] = outcome.position
        else:
            author.unsettled = entry
        if isinstance(outcome, EntryLost):
            self._lost.add(entry.id)
            if entry.id in self._index_of:
                self._break("M5", f"entry {entry.index} is in the log, and was answered EntryLost")
        self.follow()

    # --- the log -------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Apply and check what is new in the log."""
        for entry in self._engine.history_from(len(self._entries) + 1):
            self._check_place(entry)
            self._check_author(entry)
            self._apply(entry)
            self._entries.append(entry)
            self._states.append(self.state.encode())
        for id, position in list(self._appended.items()):
            if self._index_of.get(id) != position.index:
                self._break("M5", f"entry {position.index} was answered EntryAppended, and is not there")
            del self._appended[id]

    def _check_place(self, entry: MetadataEntry) -> None:
        last = self._entries[-1].position if self._entries else EMPTY
        if entry.after != last:
            self._break("M1", f"entry {entry.index} does not come after entry {last.index}")
        if entry.id in self._index_of:
            self._break("M1", f"entry {entry.index} has the id of entry {self._index_of[entry.id]}")
        if entry.id in self._lost:
            self._break("M5", f"entry {entry.index} was answered EntryLost before")
        self._index_of[entry.id] = entry.index

    def _check_author(self, entry: MetadataEntry) -> None:
        author = self._authors.get(entry.id)
        if author is None:
            self._break("M1", f"entry {entry.index} was appended by nobody")
            return
        winner = self._winners.setdefault(entry.epoch, author)
        if winner is not author and entry.epoch:
            self._break(
                "M3",
                f"epoch {entry.epoch} is of node {winner.node} ({winner.incarnation}),"
                f" but node {author.node} ({author.incarnation}) has appended {entry.index}",
            )

    def _apply(self, entry: MetadataEntry) -> None:
        try:
            records = self.state.apply(entry)
        except ClusterError as error:
            self._break("R1", f"entry {entry.index} cannot be applied: {error}")
            self.state.position = entry.position
            return
        self._transcript.note(f"log {entry.index:4} <- {entry.node} epoch {entry.epoch}: {describe(records)}")
        if not records:
            what = describe(decode_batch(entry.batch))
            self._break("M3", f"entry {entry.index} of node {entry.node} has no effect: {what}")
        author = self._authors.get(entry.id)
        done = [record for record in records if isinstance(record, RequestDone)]
        for record in records:
            self._learn(record, entry.index, author)
        for key, partition in self.state.partitions.items():
            for node in partition.isr:
                broker = self.state.broker(node)
                if broker is None or broker.is_fenced:
                    self._break("M6", f"after entry {entry.index} node {node} is in sync with {key}, and fenced")
        decided = sum(isinstance(record, TopicAdded | TopicRemoved) for record in records)
        if decided > len(done):
            self._break("A", f"entry {entry.index} adds or removes {decided} topics for {len(done)} requests")

    def _learn(self, record: Record, index: int, author: MetadataAuthor | None) -> None:
        match record:
            case ControllerElected():
                if author is not None and author.incarnation != record.incarnation:
                    self._break("M6", f"{author.incarnation} elects {record.incarnation}")
            case BrokerRegistered():
                self._incarnations.setdefault(record.node, {})[index] = record.incarnation
            case RequestDone():
                if record.request_id in self._done:
                    self._break("A", f"request {record.request_id} is carried out again by entry {index}")
                self._done[record.request_id] = (index, record)
            case PartitionChanged():
                self._partitions[record.topic_id, record.partition, record.partition_epoch] = index
            case _:
                pass

    # --- nodes ---------------------------------------------------------------------------------------

    def check_node(self, node: int, applied: Metadata) -> None:
        """M2: what this node has applied is the log up to there."""
        index = applied.position.index
        if index >= len(self._states):
            self._break("M2", f"node {node} has applied {index}, and the log ends at {len(self._entries)}")
        elif applied.encode() != self._states[index]:
            self._break("M2", f"node {node} has another state after entry {index}")

    def check_snapshot(self, snapshot: MetadataSnapshot | None) -> None:
        """M4: the snapshot and the rest make the state that there is."""
        state = Metadata()
        if snapshot is not None:
            state = Metadata.decode(snapshot.state)
            if state.position != snapshot.position:
                self._break("M4", f"the snapshot of {snapshot.position.index} is of {state.position.index}")
                return
        for entry in self._entries[state.position.index :]:
            state.apply(entry)
        if state.encode() != self._states[-1]:
            self._break("M4", f"a snapshot of {snapshot and snapshot.position.index} and the rest make another state")

    def snapshot_at(self, index: int) -> MetadataSnapshot:
        """The snapshot that a node might have stored after this entry."""
        position = self._entries[index - 1].position if index else EMPTY
        return MetadataSnapshot(position, self._states[index])

    @property
    def entries(self) -> list[MetadataEntry]:
        """The log."""
        return self._entries

    # --- what is said --------------------------------------------------------------------------------

    def answered(self, caller: CallingNode, request: bytes, answer: bytes) -> None:
        """M6: a controller carries out nothing for a process that is not the node."""
        message = decode_message(request)
        if not isinstance(message, AlterPartitions):
            return
        decided = decode_message(answer)
        if not isinstance(decided, PartitionsAltered):
            return
        for change, result in zip(message.changes, decided.results, strict=True):
            if result.refusal is not None or result.partition_epoch == change.partition_epoch:
                continue  # nothing was changed
            index = self._partitions.get((change.topic_id, change.partition, result.partition_epoch))
            if index is None:
                self._break("M5", f"partition_epoch {result.partition_epoch} was answered, and is not in the log")
                continue
            self._check_acts(message.node, message.broker_epoch, caller.incarnation, index)
            for member in change.isr:
                self._check_acts(member.node, member.broker_epoch, None, index)

    def _check_acts(self, node: int, broker_epoch: int, incarnation: str | None, index: int) -> None:
        """The broker epoch was that of the node when the entry was appended."""
        registered = self._incarnations.get(node, {})
        newest = max((epoch for epoch in registered if epoch < index), default=0)
        # It may have been registered by the same entry.
        if broker_epoch != newest and (broker_epoch != index or index not in registered):
            self._break("M6", f"entry {index} counts on node {node} as {broker_epoch}, which is {newest}")
        elif incarnation not in (None, registered[broker_epoch]):
            self._break("M6", f"{incarnation} acts under broker epoch {broker_epoch} of {registered[broker_epoch]}")

    def carried_out(self, request: AnyAdminRequest, answer: AnyAdminAnswer, applied: Metadata) -> None:
        """A: an administrator is told that this was done, by a node that has applied this."""
        request_id = getattr(request, "request_id", None)
        if isinstance(answer, ProducerIdBlock):
            for number in range(answer.first, answer.first + answer.count, max(answer.count // 8, 1)):
                if number in self._producer_numbers:
                    self._break("A", f"producer number {number} was given to two")
                self._producer_numbers[number] = ""
            if answer.first + answer.count > applied.next_producer_number:
                self._break("A", f"producer numbers from {answer.first} were given and are not taken")
            return
        found = self._done.get(request_id) if request_id is not None else None
        if found is None:
            self._break("A", f"{request} was answered, and is not in the log")
            return
        index, done = found
        if decode_answer(done.answer) != answer:
            self._break("A", f"{request} was answered {answer}, and the log says {decode_answer(done.answer)}")
        if applied.position.index < index:
            self._break("A", f"{request} was answered by a node that has not applied entry {index}")

    def refused(self, request: AnyAdminRequest) -> None:
        """A: an administrator is told that this was not done, and will not be."""
        request_id = getattr(request, "request_id", None)
        if request_id in self._done:
            self._break("A", f"{request} was refused, and entry {self._done[request_id][0]} has carried it out")


class ObservedLog:
    """The `MetadataLog` of one process, under the eyes of the checks."""

    def __init__(self, inner: MetadataLog, author: MetadataAuthor, checks: MetadataChecks) -> None:
        self._inner = inner
        self._author = author
        self._checks = checks

    async def append(self, entry: MetadataEntry) -> AppendOutcome:
        self._check_is_alive()
        self._checks.appending(self._author, entry)
        outcome: AppendOutcome | None = None
        try:
            outcome = await self._inner.append(entry)
            return outcome
        finally:
            self._checks.outcome(self._author, entry, outcome)

    async def tail(self) -> MetadataPosition:
        self._check_is_alive()
        return await self._inner.tail()

    async def read(self, first: int, limit: int) -> list[MetadataEntry]:
        self._check_is_alive()
        return await self._inner.read(first, limit)

    def watch(self, first: int) -> AsyncIterator[MetadataEntry]:
        self._check_is_alive()
        return self._inner.watch(first)

    async def load_snapshot(self) -> MetadataSnapshot | None:
        self._check_is_alive()
        return await self._inner.load_snapshot()

    async def store_snapshot(self, snapshot: MetadataSnapshot) -> None:
        self._check_is_alive()
        await self._inner.store_snapshot(snapshot)

    async def trim(self, below: int) -> None:
        self._check_is_alive()
        await self._inner.trim(below)

    async def replace(self, snapshot: MetadataSnapshot) -> None:
        raise AssertionError("no node replaces the log")

    async def close(self) -> None:
        await self._inner.close()

    def _check_is_alive(self) -> None:
        if not self._author.process.is_alive:
            raise MetadataUnavailable("the process has ended")


def describe(records: list[Record]) -> str:
    """The records in a few words."""
    if not records:
        return "nothing"
    said: dict[str, int] = {}
    for record in records:
        match record:
            case ControllerElected():
                word = f"node {record.node} is controller"
            case BrokerRegistered():
                word = f"node {record.node} registers as {record.incarnation}"
            case TopicAdded():
                word = f"topic {record.name}"
            case TopicRemoved():
                word = f"no topic {record.id[:8]}"
            case PartitionChanged():
                leader = "-" if record.leader is None else record.leader
                word = f"{record.topic_id[:4]}/{record.partition} led by {leader} isr {list(record.isr)}"
            case RequestDone():
                word = f"request {record.request_id} done"
            case _:
                fields = {name: getattr(record, name) for name in record.__struct_fields__}
                word = type(record).__name__ + "".join(f" {name}={value}" for name, value in fields.items())
        said[word] = said.get(word, 0) + 1
    return ", ".join(said)
