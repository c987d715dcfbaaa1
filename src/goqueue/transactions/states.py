"""The state machine of a transactional id.

There is one machine per transactional id, which has at most one transaction at a time. It starts as Empty, with `init`.
Then a transaction is begun, a decision ends it, and the decision is carried out. *Prepare* states last while the
decision is carried out; *Complete* states hold the last outcome until the next transaction begins.

    PrepareCommit   from the request to commit on: nothing is added any more, and the timeout does not count. Once the
                    decision is durable nothing can prevent the commit; before, it is withdrawn if it cannot be written
    PrepareAbort    nothing has to be durable: a crash aborts what is not decided, too

The table is the machine. The diagram in docs/internals/transactions.md is drawn from it.
"""

from collections.abc import Mapping
from enum import StrEnum


class TransactionState(StrEnum):
    """The state of a transactional id; the names are those of Kafka."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


class TransactionTrigger(StrEnum):
    """What leads from one state to the next."""

    INITIATED = "initiated"
    BEGUN = "begun"
    COMMITTED = "committed"  # the request passed all checks
    WITHDRAWN = "withdrawn"  # the decision could not be written
    ABORTED = "aborted"
    COMPLETED = "completed"  # the decision is carried out in all partitions
    FORGOTTEN = "forgotten"


_AT_REST = {
    TransactionTrigger.INITIATED: TransactionState.EMPTY,
    TransactionTrigger.BEGUN: TransactionState.ONGOING,
    TransactionTrigger.FORGOTTEN: TransactionState.DEAD,
}

TRANSITIONS: Mapping[TransactionState, Mapping[TransactionTrigger, TransactionState]] = {
    TransactionState.EMPTY: _AT_REST,
    TransactionState.ONGOING: {
        TransactionTrigger.COMMITTED: TransactionState.PREPARE_COMMIT,
        TransactionTrigger.ABORTED: TransactionState.PREPARE_ABORT,
    },
    TransactionState.PREPARE_COMMIT: {
        TransactionTrigger.COMPLETED: TransactionState.COMPLETE_COMMIT,
        TransactionTrigger.WITHDRAWN: TransactionState.ONGOING,
    },
    TransactionState.PREPARE_ABORT: {TransactionTrigger.COMPLETED: TransactionState.COMPLETE_ABORT},
    TransactionState.COMPLETE_COMMIT: _AT_REST,
    TransactionState.COMPLETE_ABORT: _AT_REST,
    TransactionState.DEAD: {},
}


class AbortReason(StrEnum):
    """Why a transaction was aborted."""

    CLIENT = "client"  # its owner asked for it
    TIMEOUT = "timeout"
    ADMIN = "admin"
    FENCED = "fenced"  # a newer instance of the producer was initiated
    MARKER = "marker"  # the same marker was committed before
    REPLACED = "replaced"  # a newer run of its job has begun (`jobs.py`)
    RESTART = "restart"  # its coordinator stopped before a decision
    LOST = "lost"  # a change of leader has lost some of its records or acks


class Verdict(StrEnum):
    """The fate of a transaction that has records and no marker in a partition."""

    OPEN = "open"
    COMMIT = "commit"
    ABORT = "abort"
