"""The verbs about producers and transactions."""

from collections.abc import Sequence
from typing import Protocol

from goqueue.errors import GoQueueError
from goqueue.record.header import Buffer
from goqueue.service.pending import Pending
from goqueue.service.verb import Action, Resource, Route, verb
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
    """Producers and transactions. Publishing inside of one is `MessageVerbs.publish(transaction_id=)`, or records
    that carry the number of the transaction in `gq-producer`.
    """

    @verb(Resource.TRANSACTIONAL_ID, Action.WRITE, Route.COORDINATOR)
    def init(self, transactional_id: str | None = None, *, timeout_ms: int = TIMEOUT_MS) -> Pending[ProducerSession]:
        """A producer. One with a transactional id fences the older holders of it, and aborts what they left open."""

    @verb(
        Resource.TRANSACTIONAL_ID,
        Action.WRITE,
        Route.COORDINATOR,
        not_python="for HTTP, where begin, publish and commit are requests of their own",
    )
    def heartbeat(self, producer_id: int, epoch: int, *, transactional_id: str | None = None) -> Pending[None]:
        """The producer is in use."""

    @verb(Resource.TRANSACTIONAL_ID, Action.WRITE, Route.COORDINATOR)
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

    @verb(
        Resource.TRANSACTIONAL_ID,
        Action.WRITE,
        Route.COORDINATOR,
        argument="owners",
        not_http="for jobs that stage with many tasks, over the native protocol",
    )
    def keep(self, owners: Sequence[TransactionOwner]) -> Pending[None]:
        """The timeout of what these have open starts anew."""

    @verb(
        Resource.TRANSACTIONAL_ID,
        Action.WRITE,
        Route.COORDINATOR,
        argument="job",
        not_http="for jobs that stage with many tasks, over the native protocol",
    )
    def keep_job(self, job: str, *, run: str) -> Pending[int]:
        """The timeout of all that the run has open starts anew; how many transactions that are."""

    @verb(
        Resource.TRANSACTIONAL_ID,
        Action.WRITE,
        Route.COORDINATOR,
        argument="job",
        not_http="for jobs that stage with many tasks, over the native protocol",
    )
    def abort_job(self, job: str, *, run: str | None = None) -> Pending[int]:
        """Abort all that the run has open, or all runs of the job; how many transactions that were."""

    @verb(
        Resource.TRANSACTIONAL_ID,
        Action.DESCRIBE,
        Route.COORDINATOR,
        argument="producer_id",
        not_python="for HTTP, where begin, publish and commit are requests of their own",
    )
    def current(self, producer_id: int, epoch: int) -> Pending[str]:
        """The id of the transaction that the producer has open."""

    @verb(
        Resource.TRANSACTIONAL_ID,
        Action.WRITE,
        Route.COORDINATOR,
        not_python="for HTTP, where begin, publish and commit are requests of their own",
    )
    def add_partition(
        self, transactional_id: str, producer_id: int, epoch: int, topic: str, partition: int
    ) -> Pending[None]: ...

    @verb(Resource.GROUP, Action.READ, Route.COORDINATOR)
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

    @verb(
        Resource.TOPIC,
        Action.READ,
        Route.LEADER,
        argument="receipts",
        not_native="native clients settle deliveries: transactions.add_ack_batch",
        not_python="the client settles deliveries: transactions.add_ack_batch",
    )
    def add_acks(
        self, producer_id: int, epoch: int, receipts: Sequence[str]
    ) -> Pending[list[reports.SettledMessage | GoQueueError]]:
        """Acks that take effect with the commit; the leases are held until then."""

    @verb(
        Resource.TOPIC,
        Action.READ,
        Route.LEADER,
        frame="SETTLE",
        not_http="HTTP settles by receipts: transactions.add_acks",
    )
    def add_ack_batch(
        self, producer_id: int, epoch: int, topic: str, partition: int, nonce: str, offsets: Buffer
    ) -> Pending[reports.SettledBatch]:
        """The same for messages of one delivery, as `GroupVerbs.settle_batch`."""

    @verb(Resource.TRANSACTIONAL_ID, Action.WRITE, Route.COORDINATOR, argument="owner")
    def commit(
        self,
        owner: TransactionOwner,
        *,
        together: Sequence[TransactionOwner] = (),
        marker: str | None = None,
        replaces: str | None = None,
    ) -> Pending[TransactionOutcome]:
        """All of them or none, and once per marker; a marker that it replaces is forgotten."""

    @verb(Resource.TRANSACTIONAL_ID, Action.WRITE, Route.COORDINATOR, argument="owner")
    def abort(self, owner: TransactionOwner) -> Pending[TransactionOutcome]: ...
    @verb(Resource.TRANSACTIONAL_ID, Action.ALTER, Route.COORDINATOR, argument="transaction_id")
    def abort_by_admin(self, transaction_id: str) -> Pending[TransactionOutcome]:
        """Abort the transaction of another owner."""

    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ALL_NODES)
    def list(self) -> Pending[Sequence[TransactionInfo]]:
        """Those that are open, the oldest first."""

    @verb(Resource.TRANSACTIONAL_ID, Action.DESCRIBE, Route.COORDINATOR, argument="transaction_id")
    def describe(self, transaction_id: str) -> Pending[TransactionInfo]: ...
    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ALL_NODES)
    def stats(self) -> Pending[TransactionStats]: ...
