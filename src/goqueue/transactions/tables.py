"""Everything that a coordinator knows, as tables that refer to each other.

`recovery.py` fills them from the facts on the disk, `coordinator.py` decides by them. Nothing else changes them.
"""

from goqueue.transactions.committed import CommittedMarkers
from goqueue.transactions.decisions import Decision
from goqueue.transactions.limits import TransactionLimits
from goqueue.transactions.open_transactions import OpenTransactions
from goqueue.transactions.outbox import FactOutbox
from goqueue.transactions.outcomes import OutcomeCounters
from goqueue.transactions.producers import ProducerTable


class TransactionTables:
    """The state of one coordinator."""

    __slots__ = ("limits", "markers", "open", "outbox", "outcomes", "producers", "unsettled")

    def __init__(self, limits: TransactionLimits) -> None:
        self.limits = limits
        self.producers = ProducerTable(limits)
        self.open = OpenTransactions(self.producers)
        self.unsettled: dict[tuple[int, int], Decision] = {}  # commits whose record is written, and effects are not
        self.markers = CommittedMarkers(limits)
        self.outbox = FactOutbox(self.markers)
        self.outcomes = OutcomeCounters()
