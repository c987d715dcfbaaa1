"""What a broker tells of producers and transactions. Arrays on the wire, as in `reports.py`."""

from goqueue.wire.reports import PartitionName
from goqueue.wire.wire_struct import WireStruct


class ProducerSession(WireStruct):
    """Who publishes: the id, and the epoch that is good until the next init. A producer that numbers its transactions
    by itself, so as not to wait for their begin, counts from `next_number` on.
    """

    producer_id: int
    epoch: int
    next_number: int = 0


class BegunTransaction(WireStruct):
    """An open transaction; `number` tells it from all others of its producer. Or its marker was committed before."""

    transaction_id: str
    producer_id: int
    epoch: int
    number: int
    already_committed: bool = False


class TransactionOwner(WireStruct):
    """Who commits, or aborts; and which transaction, where it says so: then a repeated call never hits the next one."""

    transactional_id: str
    producer_id: int
    epoch: int
    number: int = 0
    record_count: int | None = None  # how many records it has sent; if not all of them are stored, it is no commit


class TransactionOutcome(WireStruct):
    """`committed` or `aborted`; `already` if it was so before."""

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
    """The coordinator in numbers."""

    active_transactions: int
    committed_total: int
    aborted_total: int
    average_duration_ns: int
    by_state: dict[str, int]
    producers: int
