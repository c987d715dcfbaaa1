"""What can be asked of a broker about producers and transactions. The rules are those of `service.py`."""

from collections.abc import Sequence
from typing import Protocol

from goqueue.errors import GoQueueError
from goqueue.record.header import Buffer
from goqueue.service.pending import Pending
from goqueue.wire import reports
from goqueue.wire.transaction_reports import (
    BegunTransaction,
    ProducerSession,
    TransactionInfo,
    TransactionOutcome,
    TransactionOwner,
    TransactionStats,
)

TIMEOUT_MS = 60_000


class TransactionVerbs(Protocol):
    """Producers and transactions. Publishing inside of one is `Service.publish_messages(transaction_id=)`, or records
    that carry the number of the transaction in `gq-producer`.
    """

    def init(self, transactional_id: str | None = None, *, timeout_ms: int = TIMEOUT_MS) -> Pending[ProducerSession]:
        """A producer. One with a transactional id fences the older holders of it, and aborts what they left open."""

    def heartbeat(self, producer_id: int, epoch: int, *, transactional_id: str | None = None) -> None:
        """The producer is in use."""

    def begin(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        *,
        marker: str | None = None,
        number: int = 0,
        job: str | None = None,
        run: str = "",
    ) -> Pending[BegunTransaction]:
        """A transaction. One that its owner has numbered is there at once, else it is durable first. With a `job`, what
        other runs of it have open is aborted.
        """

    def keep(self, owners: Sequence[TransactionOwner]) -> None:
        """The timeout of what these have open starts anew."""

    def keep_job(self, job: str, *, run: str) -> int:
        """The timeout of all that the run has open starts anew; how many transactions that are."""

    def abort_job(self, job: str, *, run: str | None = None) -> Pending[int]:
        """Abort all that the run has open, or all runs of the job; how many transactions that were."""

    def current(self, producer_id: int, epoch: int) -> str:
        """The id of the transaction that the producer has open."""

    def add_partition(
        self, transactional_id: str, producer_id: int, epoch: int, topic: str, partition: int
    ) -> Pending[None]: ...

    def add_offsets(
        self,
        producer_id: int,
        epoch: int,
        group: str,
        commits: Sequence[reports.PositionCommit],
        *,
        member_id: str | None = None,
        generation: int | None = None,
    ) -> Pending[list[reports.PositionCommit]]:
        """Positions that take effect with the commit."""

    def add_acks(
        self, producer_id: int, epoch: int, receipts: Sequence[str]
    ) -> Pending[list[reports.SettledMessage | GoQueueError]]:
        """Acks that take effect with the commit; the leases are held until then."""

    def add_ack_batch(
        self, producer_id: int, epoch: int, topic: str, partition: int, nonce: str, offsets: Buffer
    ) -> Pending[reports.SettledBatch]:
        """The same for messages of one delivery, as `GroupVerbs.settle_batch`."""

    def commit(
        self,
        owner: TransactionOwner,
        *,
        together: Sequence[TransactionOwner] = (),
        marker: str | None = None,
        replaces: str | None = None,
    ) -> Pending[TransactionOutcome]:
        """All of them or none, and once per marker; a marker that it replaces is forgotten."""

    def abort(self, owner: TransactionOwner) -> Pending[TransactionOutcome]: ...
    def abort_by_admin(self, transaction_id: str) -> Pending[TransactionOutcome]:
        """End somebody else's transaction."""

    def list(self) -> Sequence[TransactionInfo]:
        """Those that are open, the oldest first."""

    def describe(self, transaction_id: str) -> TransactionInfo: ...
    def stats(self) -> TransactionStats: ...
