"""Results about producers and transactions, as `reports.py` has them about groups."""

from goqueue.wire.reports import PartitionName
from goqueue.wire.wire_struct import WireStruct


class ProducerSession(WireStruct):
    """The identity of a producer: its id, and the epoch that is valid until the next init. A producer may number its
    transactions itself, to save the round trip of `begin`; it counts from `next_number`.
    """

    producer_id: int
    epoch: int
    next_number: int = 0


class BegunTransaction(WireStruct):
    """An open transaction, unless its marker was committed before. `number` is unique for its producer."""

    transaction_id: str
    producer_id: int
    epoch: int
    number: int
    already_committed: bool = False


class TransactionOwner(WireStruct):
    """The producer that commits or aborts. With a `number`, a repeated call can never end its next transaction."""

    transactional_id: str
    producer_id: int
    epoch: int
    number: int = 0
    record_count: int | None = None  # how many records it has sent; a commit fails unless all are stored


class TransactionOutcome(WireStruct):
    """`committed` or `aborted`; `already` if that was so before the call."""

    status: str
    already: bool = False


class TransactionInfo(WireStruct):
    """A transaction as it is now."""

    transaction_id: str
    transactional_id: str
    producer_id: int
    epoch: int
    state: str
    started_at_ns: int
    updated_at_ns: int
    timeout_ms: int
    partitions: list[PartitionName]
    groups: list[str]


class TransactionStats(WireStruct):
    """Statistics of the coordinator."""

    active_transactions: int
    committed_total: int
    aborted_total: int
    average_duration_ns: int
    by_state: dict[str, int]
    producers: int
