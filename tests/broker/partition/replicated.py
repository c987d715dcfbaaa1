"""Replicas of one partition on disks of their own, connected by function calls: what tests of replication share."""

from collections.abc import Mapping
from itertools import pairwise
from typing import TypeVar

from pyroaring import BitMap64

from goqueue.broker.delivery.stored_delays import CHANGE_KEY, StoredDelays
from goqueue.broker.partition.commit_gate import InSync
from goqueue.broker.partition.fetching import Fetch, FetchAnswer
from goqueue.broker.partition.followers import FETCH_BYTES
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.ledger import facts_in
from goqueue.broker.partition.log_jobs import Flushable
from goqueue.broker.partition.publishing import publish_batch
from goqueue.broker.partition.replica import Replica
from goqueue.names import TopicPartition
from goqueue.record import kernel
from goqueue.record.header import OFFSET_MAX, Buffer
from goqueue.record.headers import PRODUCER
from goqueue.record.identity import BatchIdentity
from goqueue.service.messages import StoredBatch
from goqueue.service.pending import Pending
from goqueue.storage.config import Cleanup, LogConfig
from goqueue.storage.delay_file import DelayFile
from goqueue.storage.log import Appended, Log
from goqueue.testing import ManualClock, MemoryDisk
from goqueue.topics.config import Acks
from goqueue.topics.partition import Partition
from tests.broker.brokers import ManualWorkers

ROOT = "/data/orders/0"
ORIGIN = TopicPartition("orders", 0)
T = TypeVar("T")


class Member:
    """A node with one replica, and the hands of the test on its disk and its workers."""

    def __init__(self, number: int, clock: ManualClock, *, segment_bytes: int = 1 << 20) -> None:
        self.number = number
        self.clock = clock
        self.config = LogConfig(segment_bytes=segment_bytes, retention_ms=0)
        self.ledger_config = LogConfig(
            segment_bytes=segment_bytes, retention_ms=0, cleanup=Cleanup.COMPACT, dirty_ratio=0.1
        )
        self.open(MemoryDisk())

    def open(self, disk: MemoryDisk) -> None:
        """Start on this disk."""
        self.disk = disk
        self.workers = ManualWorkers()
        log = Log.open(disk, f"{ROOT}/log", self.config)
        partition = Partition(
            *ORIGIN,
            log,
            self.ledger_config,
            lambda config: Log.open(self.disk, f"{ROOT}/ledger", config),
            has_ledger=True,
            delay_file=DelayFile(disk, ROOT, exists=f"{ROOT}/delays" in disk.paths()),
        )
        self.unflushed: set[Flushable] = set()
        self.replica = Replica(partition, clock=self.clock, workers=self.workers, unflushed=self.unflushed)
        self.delays: StoredDelays | None = None  # while it leads

    def crash(self, seed: int | None = None) -> None:
        """Pull the plug, and start again."""
        self.open(self.disk.crash(seed=seed))

    @property
    def log(self) -> Log:
        return self.replica.log

    @property
    def ledger(self) -> Log:
        return self.replica.partition.ledger

    # --- roles ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let the workers do all they can."""
        self.workers.run_all()

    def lead(self, epoch: int, in_sync: InSync | None = None) -> PartitionLeader:
        self.resign()
        in_sync = in_sync or InSync(frozenset([self.number]))
        leader = self.replica.become_leader(epoch, replica=self.number, in_sync=in_sync)
        leader.begin_delivery = lambda: OnlyDelays(self)
        if self.replica.search.has_delays:
            leader.begin_delivery()
        return leader

    def follow(self, epoch: int) -> None:
        self.resign()
        self.replica.become_follower(epoch)

    def resign(self) -> None:
        while self.replica.follower is not None and self.replica.follower.is_cutting:
            self.workers.run_one()
        if self.delays is not None:
            self.delays.save()
            self.delays = None
        self.replica.resign()

    # --- replication ---------------------------------------------------------------------------

    @property
    def fetch(self) -> Fetch | None:
        """What it would ask its leader for now."""
        follower = self.replica.follower
        return None if follower is None or follower.is_cutting else follower.fetch()

    def answer(self, follower: int, fetch: Fetch, *, max_bytes: int = FETCH_BYTES) -> FetchAnswer | None:
        """What it answers; None: it is not the leader."""
        followers = self.replica.followers
        return None if followers is None else followers.answer(follower, fetch, max_bytes=max_bytes)

    def take(self, answer: FetchAnswer) -> None:
        if self.replica.follower is not None:
            self.replica.follower.take(answer)

    def copy_from(self, leader: "Member", *, max_bytes: int = FETCH_BYTES) -> None:
        """Fetch until there is nothing new, and make it durable."""
        while True:
            self.settle()
            leader.settle()
            fetch = self.fetch
            answer = None if fetch is None else leader.answer(self.number, fetch, max_bytes=max_bytes)
            if fetch is None or answer is None or not answer.has_news(fetch):
                return
            self.take(answer)

    def copy_ledger_only(self, leader: "Member") -> None:
        """One fetch, of whose answer the records of the log are lost."""
        fetch = self.fetch
        answer = None if fetch is None else leader.answer(self.number, fetch)
        assert answer is not None
        assert answer.log is not None
        self.take(answer._replace(log=answer.log._replace(found=None)))
        self.settle()

    # --- what users and groups do --------------------------------------------------------------

    def send(
        self, identity: BatchIdentity | None = None, *values: bytes, due_ns: int = 0, early: bool = False
    ) -> Pending[StoredBatch]:
        """Publish a batch, and let nothing run yet; with `early` even if the leader does not serve yet."""
        leader = self.replica.leader if early else self.replica.leading
        assert leader is not None
        records = batch_of(identity, *values, due_ns=due_ns)
        return publish_batch(leader, records, acks=Acks.ALL, identity=identity)

    def done(self, pending: Pending[T]) -> T:
        self.settle()
        assert pending.is_done
        return pending.result()

    def open_delays(self) -> StoredDelays:
        """The delayed messages, as the delivery of a leader finds them."""
        if self.delays is None:
            log, file = self.log, self.replica.partition.delay_file
            unseen_from = log.start_offset if file.exists else self.replica.search.unfiled_from
            self.delays = StoredDelays(
                file,
                start_offset=log.next_offset if unseen_from is None else unseen_from,
                next_offset=log.next_offset,
                wall_ns=self.clock.wall_ns(),
                is_used=log.has_delays,
            )
            for key, value in facts_in(self.ledger, ORIGIN):
                if key[:1] == CHANGE_KEY:
                    self.delays.replay(key, value)
            self.see_delays()
            self.delays.mend()
        return self.delays

    def see_delays(self) -> None:
        """Search what was not seen yet."""
        assert self.delays is not None
        self.learn_delays(records_of(self.log, self.delays.covered_offset))

    def learn_delays(self, records: Buffer) -> None:
        """The records, up to the end of the log, were appended."""
        assert self.delays is not None
        entries = kernel.outline(records).delayed
        if entries and not self.log.has_delays:
            self.log.mark_delayed()
        self.delays.schedule(entries, end_offset=self.log.next_offset, wall_ns=self.clock.wall_ns())


class OnlyDelays:
    """The delivery of a leader without groups."""

    def __init__(self, member: Member) -> None:
        self._member = member
        leader = member.replica.leader
        assert leader is not None
        leader.delivery = self
        member.open_delays()

    def appended(self, records: Buffer, appended: Appended) -> None:
        self._member.learn_delays(records)

    def find_delays(self) -> None:
        self._member.see_delays()

    def compacted(self) -> None: ...

    def drop_below(self, offset: int) -> None: ...

    def aborted(self, offsets: BitMap64) -> None: ...

    @property
    def keep_from(self) -> int | None:
        return None

    def hidden(self, start: int, end: int) -> BitMap64:
        return BitMap64()

    @property
    def cancelled(self) -> BitMap64:
        return BitMap64()

    @property
    def rescheduled(self) -> Mapping[int, int]:
        return {}


def batch_of(identity: BatchIdentity | None, *values: bytes, due_ns: int = 0) -> bytearray:
    """Records with these values; of a producer as many as its identity says."""
    count = identity.record_count if identity else len(values)
    chosen = list(values) or [b"%d" % (identity.first_sequence + number) for number in range(count) if identity]
    headers: list[Mapping[str, str | bytes] | None] = [None] * count
    first: dict[str, str | bytes] = {}
    if identity:
        first[PRODUCER] = identity.encode()
    if due_ns:
        first["gq-deliver-at"] = str(due_ns)
    headers[0] = first or None
    flags = 0x20 if identity and identity.transaction else 0
    return kernel.encode(chosen, headers=headers, flags=flags)


def records_of(log: Log, start: int = 0, end: int = OFFSET_MAX) -> bytes:
    """The stored records in that range."""
    reader, parts = log.reader(max(start, log.start_offset)), list[bytes]()
    while (chunk := reader.read(max_bytes=1 << 20, to_offset=min(end, log.next_offset))).record_count:
        parts.append(bytes(chunk.records))
    return b"".join(parts)


def by_offset(records: bytes) -> dict[int, bytes]:
    """Each stored record, by its offset."""
    positions = memoryview(kernel.scan(records, positions=True).positions).cast("I").tolist()
    pieces = [records[start:end] for start, end in pairwise([*positions, len(records)])]
    return {int.from_bytes(piece[8:16]): piece for piece in pieces}
