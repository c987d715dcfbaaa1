"""When open transactions time out: a heap whose entries may be stale.

A producer that keeps its transaction alive does so often, and a job keeps thousands of transactions at once. So keeping
one only moves the deadline in the transaction itself; its entry in the heap stays where it is. An entry that comes up
is compared with the transaction: it may have ended, or may have a later deadline by now.
"""

import heapq
from collections.abc import Iterator
from itertools import count

from goqueue.transactions.states import TransactionState
from goqueue.transactions.transaction import StagedTransaction

_STALE_MAX = 64


class Deadlines:
    """One entry or more for every open transaction."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, StagedTransaction]] = []
        self._size_max = _STALE_MAX
        self._order = count()  # breaks ties: transactions cannot be compared

    def __len__(self) -> int:
        """Entries, including stale ones."""
        return len(self._heap)

    @property
    def next_ns(self) -> int | None:
        """No transaction times out before this time; whether one does then is not certain."""
        return self._heap[0][0] if self._heap else None

    def add(self, transaction: StagedTransaction) -> None:
        if len(self._heap) > self._size_max:
            # Without this, transactions that end long before a long timeout would pile up.
            self._heap = [entry for entry in self._heap if entry[2].state is TransactionState.ONGOING]
            heapq.heapify(self._heap)
            self._size_max = max(_STALE_MAX, 2 * len(self._heap))
        heapq.heappush(self._heap, (transaction.deadline_ns, next(self._order), transaction))

    def take_expired(self, now_ns: int) -> Iterator[StagedTransaction]:
        """The ongoing transactions whose deadline has passed."""
        while self._heap and self._heap[0][0] <= now_ns:
            transaction = heapq.heappop(self._heap)[2]
            if transaction.state is not TransactionState.ONGOING:
                continue
            if transaction.deadline_ns > now_ns:  # it was kept alive
                self.add(transaction)
            else:
                yield transaction
