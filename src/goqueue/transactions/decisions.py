"""Decisions: how transactions end, and everything that has to happen for it.

A decision covers one transaction, or several that are committed together, and has one part for each. It is carried out
by whoever owns the partitions: markers for `part.partitions`, then `part.positions` and `part.acks`, each as it says
and only if the topic is still the one of that id. All of it may be done twice; a marker of a transaction that has
ended in a partition touches nothing there.

    commit    asked for -> durable (`decided`) -> carried out (`completed`) -> that is durable, too (`settled`)
    abort     asked for                        -> carried out (`completed`) -> `settled`

A commit is *one* record, so it is there as a whole or not at all. It is written while the data of its partitions is on
its way to the medium, and counts only with all of it: a restart that finds a partition which ends too early takes the
decision back, for good, before anything is written there. From the moment all of it is durable until `settled` every
restart finds it and carries it out again. Hence `settled` must not come before each marker, position and ack is as
durable as the decision was: after it nobody remembers them. The caller is answered at `completed`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated

import msgspec
from pyroaring import BitMap64

from goqueue.transactions.states import Reason
from goqueue.wire.transaction_reports import TransactionOutcome

Whole = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""As a disk may tell it; one more is still a number of 64 bits."""
Epoch = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
ProducerId = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class DecidedPartition(msgspec.Struct, array_like=True, frozen=True):
    """A partition that gets a marker. All that the transaction has there lies below `end_offset`."""

    topic: str
    topic_id: str
    partition: Whole
    end_offset: Whole = 0


class DecidedPosition(msgspec.Struct, array_like=True, frozen=True):
    """A position of a group that is committed with the transaction."""

    group: str
    topic: str
    topic_id: str
    partition: Whole
    offset: Whole
    metadata: str = ""


class DecidedAcks(msgspec.Struct, array_like=True, frozen=True):
    """Messages that a group is done with if the transaction commits, and that are due again if it does not."""

    group: str
    topic: str
    topic_id: str
    partition: Whole
    offsets: BitMap64


class DecisionPart(msgspec.Struct, array_like=True, frozen=True):
    """What the decision means for one transaction."""

    transactional_id: str
    producer_id: ProducerId
    number: Whole
    started_at_ns: Whole
    partitions: list[DecidedPartition]
    positions: list[DecidedPosition]
    acks: list[DecidedAcks]


class Stage(IntEnum):
    """How far a decision has come."""

    ASKED = 0
    DECIDED = 1
    COMPLETED = 2
    SETTLED = 3
    WITHDRAWN = 4


@dataclass(slots=True, kw_only=True, eq=False)
class Decision:
    """One step in which transactions end, all in the same way. Only the coordinator changes it."""

    id: str
    is_commit: bool
    parts: tuple[DecisionPart, ...]
    answer: TransactionOutcome
    """What to tell who asked for it, when it is completed."""
    marker: str | None = None
    replaces: str | None = None
    """A marker that nobody will ask for any more, once this one is committed."""
    reason: Reason | None = None
    """Of an abort."""
    facts: Mapping[bytes, bytes | None] = field(default_factory=dict)
    """What has to be durable before anything of it is carried out; an abort has none."""
    stage: Stage = Stage.ASKED


class Busy(Exception):
    """A decision about what was named is being carried out: ask again as soon as it is completed, or withdrawn."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.id)
        self.decision = decision
