"""The transactions of a coordinator that have not ended, and the ways to name one.

A publish names producer id, epoch and number. An ack or a commit names the producer, which has at most one transaction
open. Users and the HTTP API name the transaction id (`orders-writer:1700000000000000`).

A transaction stays in this table until its decision is completed, so one that is being committed or aborted is still
found. The lookups for writing (`check_publish`, `of_producer`, `by_id`) refuse it: nothing may be added any more.
"""

from goqueue.errors import TransactionNotFound
from goqueue.transactions.producers import ProducerEntry, ProducerTable
from goqueue.transactions.states import TransactionState
from goqueue.transactions.transaction import StagedTransaction, split_transaction_id


class OpenTransactions:
    """Staged transactions by producer id and number. Only the coordinator adds and removes them."""

    def __init__(self, producers: ProducerTable) -> None:
        self._producers = producers
        self._by_number: dict[tuple[int, int], StagedTransaction] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def add(self, transaction: StagedTransaction) -> None:
        self._by_number[transaction.producer_id, transaction.number] = transaction

    def remove(self, transaction: StagedTransaction) -> None:
        del self._by_number[transaction.producer_id, transaction.number]

    def find(self, producer_id: int, number: int) -> StagedTransaction | None:
        """The transaction of that number, in any state; None once it has ended."""
        return self._by_number.get((producer_id, number))

    def check_publish(self, producer_id: int, epoch: int, number: int) -> StagedTransaction:
        """The transaction to publish into.

        Raises `ProducerNotFound`, `ProducerFenced`, `TransactionAborted` or `InvalidTransactionState`.
        """
        transaction = self._by_number.get((producer_id, number))
        if transaction and transaction.epoch == epoch and transaction.state is TransactionState.ONGOING:
            return transaction
        raise self._producers.get(producer_id, epoch).refusal(number)

    def of_producer(self, producer_id: int, epoch: int, transactional_id: str | None = None) -> StagedTransaction:
        """The transaction that the producer has open; raises as `check_publish` does."""
        producer = self._producers.get(producer_id, epoch, transactional_id)
        if producer.transaction and producer.state is TransactionState.ONGOING:
            return producer.transaction
        raise producer.refusal()

    def by_id(self, id: str) -> StagedTransaction:
        """The transaction to publish into.

        Raises `TransactionNotFound`, `TransactionAborted` or `InvalidTransactionState`.
        """
        producer, number = self.split_id(id)
        transaction = self._by_number.get((producer.producer_id, number))
        if transaction and transaction.state is TransactionState.ONGOING:
            return transaction
        if number != producer.number:
            raise TransactionNotFound(id)
        raise producer.refusal(number)

    def unfinished(self, id: str) -> StagedTransaction:
        """The transaction of that id, in any state until it has ended. Raises `TransactionNotFound`."""
        producer, number = self.split_id(id)
        if producer.transaction and producer.transaction.number == number:
            return producer.transaction
        raise TransactionNotFound(id)

    def split_id(self, id: str) -> tuple[ProducerEntry, int]:
        """The producer and the number that a transaction id names. Raises `TransactionNotFound`."""
        named = split_transaction_id(id)
        producer = self._producers.find(named[0]) if named else None
        if not named or not producer:
            raise TransactionNotFound(id)
        return producer, named[1]

    def oldest_first(self) -> list[StagedTransaction]:
        return sorted(self._by_number.values(), key=lambda transaction: transaction.begun_ns)
