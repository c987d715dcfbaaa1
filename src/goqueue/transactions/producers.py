"""Producers, with and without a transactional id.

A producer is known by its id and fenced by its epoch. A transactional id keeps its producer id across restarts of the
application: a second instance that initiates the same transactional id gets a higher epoch, and every later request of
the first instance is refused as fenced. A producer that was not used for seven days is forgotten.

The time of the last use is not stored with every use. It is written with other changes of the producer, or when the
stored time is a day old.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from goqueue.errors import (
    Conflict,
    InvalidRequest,
    InvalidTransactionState,
    ProducerFenced,
    ProducerNotFound,
    TransactionAborted,
    TransactionError,
)
from goqueue.transactions import facts
from goqueue.transactions.decisions import Busy, Decision
from goqueue.transactions.limits import TransactionLimits
from goqueue.transactions.states import TRANSITIONS, AbortReason, TransactionState, TransactionTrigger
from goqueue.transactions.transaction import StagedTransaction, transaction_id

EPOCH_MAX = 2**31 - 1
PRODUCER_ID_MAX = 2**63 - 1
ID_STEP = 256
"""Producer ids of one coordinator are so far apart, or a multiple of it (`producer_ids.py`)."""
TRANSACTIONAL_ID_CHARACTERS_MAX = 255


@dataclass(slots=True, eq=False)
class ProducerEntry:
    """One producer and, if it has a transactional id, the state of its last transaction."""

    producer_id: int
    epoch: int
    used_at_ns: int  # wall clock
    transactional_id: str | None = None
    timeout_ms: int = 0
    state: TransactionState = TransactionState.EMPTY
    number: int = 0  # of the open transaction, or of the last one; 0: there was none
    number_min: int = 1  # the lowest number that the next transaction may have
    started_at_ns: int = 0
    reason: AbortReason | None = None  # why the last transaction was aborted
    decision_id: str = ""  # the decision that committed the last transaction
    transaction: StagedTransaction | None = None  # the open one
    under_way: Decision | None = None  # about the open transaction
    saved_at_ns: int = 0  # the time of the last use that is stored

    @property
    def key(self) -> bytes:
        """The key of its fact."""
        if self.transactional_id is None:
            return facts.PRODUCER_KEY + str(self.producer_id).encode()
        return facts.TRANSACTIONAL_KEY + self.transactional_id.encode()

    @property
    def transaction_id(self) -> str:
        """The id of the open transaction, or of the last one."""
        return transaction_id(self.transactional_id or "", self.number)

    def fact(self) -> bytes | None:
        """The encoded producer; None once it is forgotten."""
        if self.state is TransactionState.DEAD:
            return None
        self.saved_at_ns = self.used_at_ns
        if self.transactional_id is None:
            return facts.encode(facts.SavedProducer(facts.VERSION, self.epoch, self.used_at_ns))
        is_initiated = self.under_way is not None and self.under_way.reason is AbortReason.FENCED
        return facts.encode(
            facts.SavedTransactional(
                facts.VERSION,
                self.producer_id,
                self.epoch,
                self.number,
                self.timeout_ms,
                TransactionState.EMPTY
                if is_initiated
                else self.state,  # the fenced instance is never told of the abort
                self.started_at_ns,
                None if is_initiated else self.reason,
                self.decision_id,
                self.used_at_ns,
            )
        )

    def check_free(self) -> None:
        """Raise `Busy` while a decision about its transaction is under way."""
        if self.under_way:
            raise Busy(self.under_way)

    def ongoing(self, number: int) -> StagedTransaction:
        """The open transaction, if it has that number (0: any); the caller knows that no decision is under way."""
        if self.transaction and number in (0, self.number):
            return self.transaction
        raise self.refusal(number)

    def refusal(self, number: int = 0) -> TransactionError:
        """Why nothing can be added to the transaction of that number (0: the last one)."""
        if self.transactional_id is None:
            return self.invalid("no transaction open")
        if number > self.number:
            # A number above the last one was begun, and lost with the end of `__transactions` in a crash.
            return TransactionAborted(transaction_id(self.transactional_id, number), AbortReason.RESTART.value)
        if number in (0, self.number) and self.reason not in (None, AbortReason.CLIENT):
            return TransactionAborted(self.transaction_id, self.reason.value)
        return self.invalid("no transaction open")

    def invalid(self, fault: str) -> InvalidTransactionState:
        name = f"producer {self.producer_id}" if self.transactional_id is None else self.transactional_id
        return InvalidTransactionState(fault, name, self.state.value)

    def is_past(self, number: int) -> bool:
        """Whether this entry is newer than the transaction of that number."""
        return number < self.number or (number == self.number and self.state is TransactionState.EMPTY)


class ProducerTable:
    """Every producer that is remembered, least recently used first."""

    def __init__(self, limits: TransactionLimits) -> None:
        self._limits = limits
        self._by_id: dict[int, ProducerEntry] = {}
        self._plain: OrderedDict[int, ProducerEntry] = OrderedDict()
        self._holders: OrderedDict[str, ProducerEntry] = OrderedDict()
        self._states: Counter[TransactionState] = Counter()

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def by_state(self) -> Mapping[TransactionState, int]:
        """How many transactional ids are in each state."""
        return self._states

    def find(self, transactional_id: str) -> ProducerEntry | None:
        """The producer that holds the transactional id."""
        return self._holders.get(transactional_id)

    def find_id(self, producer_id: int) -> ProducerEntry | None:
        """The producer of that id, with or without a transactional id."""
        return self._by_id.get(producer_id)

    def get(self, producer_id: int, epoch: int, transactional_id: str | None = None) -> ProducerEntry:
        """The producer, if the epoch is the current one. Raises `ProducerNotFound` or `ProducerFenced`."""
        producer = self._by_id.get(producer_id)
        if not producer or transactional_id not in (None, producer.transactional_id):
            raise ProducerNotFound(producer_id)
        if producer.epoch != epoch:
            raise ProducerFenced(producer_id, epoch, producer.epoch)
        return producer

    def add(self, producer: ProducerEntry) -> ProducerEntry | None:
        """Add the producer; returns the one that was forgotten to make room for it."""
        self._by_id[producer.producer_id] = producer
        if producer.transactional_id is not None:
            self._holders[producer.transactional_id] = producer
            self._states[producer.state] += 1
            return None
        self._plain[producer.producer_id] = producer
        if len(self._plain) <= self._limits.plain_producers_max:
            return None
        oldest = next(iter(self._plain.values()))
        self.forget(oldest)
        return oldest

    def check_room(self) -> None:
        """Raise `Conflict` if there is no room for one more transactional id."""
        if len(self._holders) >= self._limits.producers_max:
            raise Conflict(f"there are {len(self._holders)} transactional ids, which is the limit; reuse one of them")

    def free_id(self, wanted: int) -> int:
        """The wanted id if no producer has it, else the next free one of the same coordinator."""
        while wanted in self._by_id:
            wanted = wanted + ID_STEP if wanted + ID_STEP <= PRODUCER_ID_MAX else wanted % ID_STEP + ID_STEP
        return wanted

    def renew(self, producer: ProducerEntry, *, new_id: int) -> None:
        """Fence the previous instance: raise the epoch or, after the last epoch, change the id."""
        if producer.epoch < EPOCH_MAX:
            producer.epoch += 1
            return
        del self._by_id[producer.producer_id]
        producer.producer_id = self.free_id(new_id)
        producer.epoch = 0
        self._by_id[producer.producer_id] = producer

    def use(self, producer: ProducerEntry, *, wall_ns: int) -> None:
        """Note that the producer was used."""
        producer.used_at_ns = wall_ns
        if producer.transactional_id is None:
            self._plain.move_to_end(producer.producer_id)
        else:
            self._holders.move_to_end(producer.transactional_id)

    def turn(self, producer: ProducerEntry, trigger: TransactionTrigger) -> None:
        """Change the state as `TRANSITIONS` says."""
        self.become(producer, TRANSITIONS[producer.state][trigger])

    def become(self, producer: ProducerEntry, state: TransactionState) -> None:
        """Set the state, past the table: recovery restores what was there before a restart."""
        self._states[producer.state] -= 1
        self._states[state] += 1
        producer.state = state
        if producer.transaction:
            producer.transaction.state = state

    def forget(self, producer: ProducerEntry) -> None:
        """Remove the producer; its state becomes `DEAD`, so that its fact becomes a tombstone."""
        del self._by_id[producer.producer_id]
        if producer.transactional_id is None:
            del self._plain[producer.producer_id]
            producer.state = TransactionState.DEAD
        else:
            del self._holders[producer.transactional_id]
            self.turn(producer, TransactionTrigger.FORGOTTEN)
            del self._states[TransactionState.DEAD]

    def forget_idle(self, *, wall_ns: int, count_max: int) -> Iterator[ProducerEntry]:
        """Forget producers that were not used for `idle_ns_max`, at most `count_max` of each kind."""
        for producers in (self._plain.values(), self._holders.values()):
            for _ in range(count_max):
                producer = next(iter(producers), None)
                if not producer or producer.under_way or producer.transaction:
                    break
                if wall_ns - producer.used_at_ns < self._limits.idle_ns_max:
                    break
                self.forget(producer)
                yield producer


def validate_transactional_id(text: str) -> None:
    """Raise `InvalidRequest` if the text cannot be a transactional id."""
    if not text:
        raise InvalidRequest("transactional_id is required", path="transactional_id")
    if len(text) > TRANSACTIONAL_ID_CHARACTERS_MAX or not text.isprintable():
        rule = f"must be 1 to {TRANSACTIONAL_ID_CHARACTERS_MAX} printable characters"
        raise InvalidRequest(f"transactional_id {rule}", path="transactional_id")
