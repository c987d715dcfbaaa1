"""The states of a transactional id, and what leads from one to the next.

There is one machine per transactional id, for it has at most one transaction at a time. It begins Empty, with `init`,
and goes round: a transaction is begun, it is decided that it ends and how, and that is carried out. What is *prepared*
is being carried out; what is *complete* has been, and stands as the last outcome until the next transaction begins.

    PrepareCommit   from the moment the commit is asked for: nothing is added any more, no timeout counts, and once the
                    decision is durable nothing can prevent it. Until then it may be withdrawn, if it could not be
                    written.
    PrepareAbort    nothing has to be durable for that: what is not decided is aborted by a crash, too.

The table is the machine. The diagram in docs/internals/transactions.md is drawn from it.
"""

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    """What a transactional id is doing."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


class Turn(StrEnum):
    """What takes it from one state to the next."""

    INITIATED = "initiated"
    BEGUN = "begun"
    COMMITTED = "committed"  # it was asked for, and nothing speaks against it
    WITHDRAWN = "withdrawn"  # the decision could not be written
    ABORTED = "aborted"
    COMPLETED = "completed"  # what was decided is carried out, everywhere
    FORGOTTEN = "forgotten"


_AT_REST = {Turn.INITIATED: State.EMPTY, Turn.BEGUN: State.ONGOING, Turn.FORGOTTEN: State.DEAD}

TRANSITIONS: Mapping[State, Mapping[Turn, State]] = {
    State.EMPTY: _AT_REST,
    State.ONGOING: {Turn.COMMITTED: State.PREPARE_COMMIT, Turn.ABORTED: State.PREPARE_ABORT},
    State.PREPARE_COMMIT: {Turn.COMPLETED: State.COMPLETE_COMMIT, Turn.WITHDRAWN: State.ONGOING},
    State.PREPARE_ABORT: {Turn.COMPLETED: State.COMPLETE_ABORT},
    State.COMPLETE_COMMIT: _AT_REST,
    State.COMPLETE_ABORT: _AT_REST,
    State.DEAD: {},
}


class Reason(StrEnum):
    """Why a transaction was aborted."""

    CLIENT = "client"  # its owner asked for it
    TIMEOUT = "timeout"
    ADMIN = "admin"
    FENCED = "fenced"  # a newer instance of the producer was initiated
    MARKER = "marker"  # what it holds was committed before, under the same marker
    REPLACED = "replaced"  # a newer run of its job has begun (`jobs.py`)
    RESTART = "restart"  # the broker was gone, and nothing was decided by then


class Verdict(StrEnum):
    """What becomes of a transaction of which a partition has records but no marker."""

    OPEN = "open"
    COMMIT = "commit"
    ABORT = "abort"
