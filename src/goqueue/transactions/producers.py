"""Who publishes: producers, with and without a transactional id.

A producer is known by its id and fenced by its epoch. One with a transactional id keeps both as long as it is used, so
that a second instance that is initiated under the same transactional id has a higher epoch than the first, and the
first is refused from then on, whatever it asks for. A producer that was not used for seven days is forgotten.

How recent the last use is does not have to be on the disk at once: it is written with other news of the producer, or
when what is there is a day old.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from goqueue.errors import Conflict, InvalidRequest, ProducerFenced, ProducerNotFound
from goqueue.transactions import facts
from goqueue.transactions.decisions import Decision
from goqueue.transactions.limits import TransactionLimits
from goqueue.transactions.states import TRANSITIONS, Reason, State, Turn
from goqueue.transactions.transaction import Transaction, transaction_id

EPOCH_MAX = 2**31 - 1
PRODUCER_ID_MAX = 2**63 - 1
TRANSACTIONAL_ID_CHARACTERS_MAX = 255


@dataclass(slots=True, eq=False)
class Producer:
    """One producer, and, if it has a transactional id, how its last transaction stands. Only its table changes it."""

    producer_id: int
    epoch: int
    used_at_ns: int  # as the calendar shows it
    transactional_id: str | None = None
    timeout_ms: int = 0
    state: State = State.EMPTY
    number: int = 0  # of the transaction that is open, or was the last; 0: there was none
    number_min: int = 1  # what the next one has at least
    started_at_ns: int = 0
    reason: Reason | None = None  # why the last one was aborted
    decision_id: str = ""  # by which it was committed
    transaction: Transaction | None = None  # the one that is open
    under_way: Decision | None = None
    saved_at_ns: int = 0  # the last use that is in a fact

    @property
    def key(self) -> bytes:
        """Under which it is stored."""
        if self.transactional_id is None:
            return facts.PRODUCER_KEY + str(self.producer_id).encode()
        return facts.TRANSACTIONAL_KEY + self.transactional_id.encode()

    @property
    def transaction_id(self) -> str:
        """What users call the transaction that is open, or was the last."""
        return transaction_id(self.transactional_id or "", self.number)

    def fact(self) -> bytes | None:
        """The producer as it is stored; None once it is forgotten."""
        if self.state is State.DEAD:
            return None
        self.saved_at_ns = self.used_at_ns
        if self.transactional_id is None:
            return facts.encode(facts.SavedProducer(facts.VERSION, self.epoch, self.used_at_ns))
        is_initiated = self.under_way is not None and self.under_way.reason is Reason.FENCED
        return facts.encode(
            facts.SavedTransactional(
                facts.VERSION,
                self.producer_id,
                self.epoch,
                self.number,
                self.timeout_ms,
                State.EMPTY if is_initiated else self.state,  # nobody is left to hear of what was aborted
                self.started_at_ns,
                None if is_initiated else self.reason,
                self.decision_id,
                self.used_at_ns,
            )
        )


class Producers:
    """Every producer that was used lately, those that were not used for longest first."""

    def __init__(self, limits: TransactionLimits) -> None:
        self._limits = limits
        self._by_id: dict[int, Producer] = {}
        self._plain: OrderedDict[int, Producer] = OrderedDict()
        self._holders: OrderedDict[str, Producer] = OrderedDict()
        self._states: Counter[State] = Counter()

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def by_state(self) -> Mapping[State, int]:
        """How many transactional ids are in each state."""
        return self._states

    def find(self, transactional_id: str) -> Producer | None:
        """Who holds the transactional id."""
        return self._holders.get(transactional_id)

    def find_id(self, producer_id: int) -> Producer | None:
        """The producer of that id, of either kind."""
        return self._by_id.get(producer_id)

    def get(self, producer_id: int, epoch: int, transactional_id: str | None = None) -> Producer:
        """The producer, if it is still the one it takes itself for. Raises `ProducerNotFound` or `ProducerFenced`."""
        producer = self._by_id.get(producer_id)
        if not producer or transactional_id not in (None, producer.transactional_id):
            raise ProducerNotFound(producer_id)
        if producer.epoch != epoch:
            raise ProducerFenced(producer_id, epoch, producer.epoch)
        return producer

    def add(self, producer: Producer) -> Producer | None:
        """Take it in; returns the one that was forgotten to make room for it."""
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
            raise Conflict(f"there are {len(self._holders)} transactional ids, which is the limit")

    def free_id(self, wanted: int) -> int:
        """An id that no producer has: the one that is wanted, or the next after it."""
        while wanted in self._by_id:
            wanted = wanted % PRODUCER_ID_MAX + 1
        return wanted

    def renew(self, producer: Producer, *, new_id: int) -> None:
        """Fence whoever used it until now: the next epoch, or, after the last one, another id."""
        if producer.epoch < EPOCH_MAX:
            producer.epoch += 1
            return
        del self._by_id[producer.producer_id]
        producer.producer_id = self.free_id(new_id)
        producer.epoch = 0
        self._by_id[producer.producer_id] = producer

    def use(self, producer: Producer, *, wall_ns: int) -> None:
        """It is in use."""
        producer.used_at_ns = wall_ns
        if producer.transactional_id is None:
            self._plain.move_to_end(producer.producer_id)
        else:
            self._holders.move_to_end(producer.transactional_id)

    def turn(self, producer: Producer, turn: Turn) -> None:
        """Go over to the next state, as the table says."""
        self.become(producer, TRANSITIONS[producer.state][turn])

    def become(self, producer: Producer, state: State) -> None:
        """Be in that state, because it was so before a restart."""
        self._states[producer.state] -= 1
        self._states[state] += 1
        producer.state = state
        if producer.transaction:
            producer.transaction.state = state

    def forget(self, producer: Producer) -> None:
        """Know nothing of it any more."""
        del self._by_id[producer.producer_id]
        if producer.transactional_id is None:
            del self._plain[producer.producer_id]
            producer.state = State.DEAD
        else:
            del self._holders[producer.transactional_id]
            self.turn(producer, Turn.FORGOTTEN)
            del self._states[State.DEAD]

    def forget_idle(self, *, wall_ns: int, count_max: int) -> Iterator[Producer]:
        """Forget those that were not used for too long, the oldest first, but not so many that it takes long."""
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
    """Raise `InvalidRequest` unless a producer may be called that."""
    if not text:
        raise InvalidRequest("transactional_id is required", path="transactional_id")
    if len(text) > TRANSACTIONAL_ID_CHARACTERS_MAX or not text.isprintable():
        rule = f"must be 1 to {TRANSACTIONAL_ID_CHARACTERS_MAX} printable characters"
        raise InvalidRequest(f"transactional_id {rule}", path="transactional_id")
