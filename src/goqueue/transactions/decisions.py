"""Decisions: how transactions end, and all the effects of that.

A decision covers one transaction, or several that are committed together, and has one part for each. The owner of the
partitions carries it out: markers for `part.partitions`, then `part.positions` and `part.acks`, each only if the topic
still has the id that the decision names. Carrying it out twice is harmless: in a partition where the transaction has
ended, a second marker changes nothing.

    commit    asked for -> durable (`decided`) -> carried out (`completed`) -> effects durable (`settled`)
    abort     asked for                        -> carried out (`completed`) -> `settled`

A commit is *one* record, so a crash leaves all of it or nothing. The record is written while the data of its partitions
is being flushed, and counts only together with that data: on restart, a decision is void if any of its partitions ends
before the offset that the decision names. It is then tombstoned before anything is written to those partitions. From
the moment decision and data are durable until `settled`, every restart finds the decision and carries it out again.
Hence `settled` must wait until each marker, position and ack is durable: it deletes the only record of them. The caller
is answered at `completed`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated

import msgspec
from pyroaring import BitMap64

from goqueue.transactions.states import AbortReason
from goqueue.wire.transaction_reports import TransactionOutcome

Whole = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""Bounded so that a damaged fact cannot hold a number whose successor does not fit into 64 bits."""
Epoch = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
ProducerId = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


COMMITTED = "committed"
ABORTED = "aborted"


class DecidedPartition(msgspec.Struct, array_like=True, frozen=True):
    """A partition that gets a marker. All records of the transaction there are below `end_offset`, which was the end of
    its log under the leader of that epoch. Without that epoch up to there, a log has lost records.
    """

    topic: str
    topic_id: str
    partition: Whole
    end_offset: Whole = 0
    epoch: Whole = 0


class DecidedPosition(msgspec.Struct, array_like=True, frozen=True):
    """A position of a group that is committed with the transaction."""

    group: str
    topic: str
    topic_id: str
    partition: Whole
    offset: Whole
    metadata: str = ""


class DecidedAcks(msgspec.Struct, array_like=True, frozen=True):
    """Messages that are acked for a group if the transaction commits, and redelivered if it aborts."""

    group: str
    topic: str
    topic_id: str
    partition: Whole
    offsets: BitMap64


class DecisionPart(msgspec.Struct, array_like=True, frozen=True):
    """The effects of the decision on one transaction."""

    transactional_id: str
    producer_id: ProducerId
    number: Whole
    started_at_ns: Whole
    partitions: list[DecidedPartition]
    positions: list[DecidedPosition]
    acks: list[DecidedAcks]


class Stage(IntEnum):
    """The progress of a decision."""

    ASKED = 0
    DECIDED = 1
    COMPLETED = 2
    SETTLED = 3
    WITHDRAWN = 4


@dataclass(slots=True, kw_only=True, eq=False)
class Decision:
    """The commit, or the abort, of one or more transactions in one step. Only the coordinator changes it."""

    id: str
    is_commit: bool
    parts: tuple[DecisionPart, ...]
    answer: TransactionOutcome
    """The answer to the request, given when the decision is completed."""
    marker: str | None = None
    replaces: str | None = None
    """The marker of an earlier commit, which can be forgotten once this one is committed."""
    reason: AbortReason | None = None
    """Why it is an abort; None for a commit."""
    facts: Mapping[bytes, bytes | None] = field(default_factory=dict)
    """What has to be durable before the decision is carried out; an abort has none."""
    stage: Stage = Stage.ASKED


class Busy(Exception):
    """A decision about the transaction or marker is under way: repeat the call when it is completed or withdrawn."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.id)
        self.decision = decision
