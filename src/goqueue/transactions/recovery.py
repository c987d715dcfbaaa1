"""What a coordinator does first after a restart: it reads the facts of `__transactions`.

    t: and p:   producers as they were. A transaction that was open and not decided is aborted: its records carry its
                number, and partitions that find such records ask for the verdict
    d:          a commit whose record was written. It counts unless a partition ends before the offset that it names:
                then the record and the data were on their way together, and only the record arrived. The owner of the
                partitions knows that: each decision is under way again, and is `decided` or `voided` next
    m:          markers that were committed

A fact that cannot be decoded is skipped and reported. If it was a decision, its transactions count as undecided.
"""

from collections.abc import Mapping
from typing import NamedTuple

from goqueue.errors import GoQueueError, UnsupportedFormat
from goqueue.names import TopicPartition
from goqueue.transactions import facts
from goqueue.transactions.decisions import COMMITTED, Decision, DecisionPart
from goqueue.transactions.producers import ProducerEntry, validate_transactional_id
from goqueue.transactions.states import AbortReason, TransactionState, TransactionTrigger
from goqueue.transactions.tables import TransactionTables
from goqueue.transactions.transaction import StagedTransaction
from goqueue.wire.transaction_reports import TransactionOutcome

_INTERRUPTED = (TransactionState.ONGOING, TransactionState.PREPARE_ABORT, TransactionState.PREPARE_COMMIT)


class CoordinatorRecovery(NamedTuple):
    """What the owner of the partitions has to do before it serves anything."""

    decisions: list[Decision]
    """Commits that are under way again. Those that do not count must be tombstoned first, durably, before anything is
    written to their partitions.
    """
    aborted: list[str]
    """The transactions that were open. Their records are in partitions that ask for the `verdict`."""
    unreadable: dict[bytes, str]
    """The facts that cannot be decoded, by key, and why."""


class _StoredFacts(NamedTuple):
    producers: list[ProducerEntry]
    decisions: list[Decision]
    markers: list[tuple[str, facts.SavedMarker]]
    unreadable: dict[bytes, str]


def recover(
    tables: TransactionTables,
    stored: Mapping[bytes, bytes],
    *,
    now_ns: int,
    wall_ns: int,
) -> CoordinatorRecovery:
    """Fill the empty tables from the facts."""
    assert not tables.producers
    producers, decisions, markers, unreadable = _decode(stored)
    for producer in sorted(producers, key=lambda one: one.used_at_ns):
        forgotten = tables.producers.add(producer)
        if forgotten:
            tables.outbox.note(forgotten)
    tables.markers.restore(markers)
    parts = [(decision, part) for decision in decisions for part in decision.parts]
    # The newest decision of a producer comes first; `_resume` then finds the producer beyond the older ones.
    for decision, part in sorted(parts, key=lambda pair: pair[1].number, reverse=True):
        _resume(tables, decision, part, begun_ns=now_ns - max(0, wall_ns - part.started_at_ns))
    interrupted = [one for one in producers if one.state in _INTERRUPTED and not one.under_way]
    return CoordinatorRecovery(decisions, [_abort(tables, one) for one in interrupted], unreadable)


def _resume(tables: TransactionTables, decision: Decision, part: DecisionPart, *, begun_ns: int) -> None:
    """Put a commit whose record was found under way again."""
    if decision.marker is not None:
        tables.markers.committing[decision.marker] = decision
    tables.unsettled[part.producer_id, part.number] = decision
    producer = tables.producers.find(part.transactional_id)
    if not producer or producer.producer_id != part.producer_id or producer.is_past(part.number):
        return
    producer.number = part.number
    producer.number_min = part.number + 1
    producer.reason = None
    producer.under_way = decision
    producer.transaction = _restaged(tables, producer, part, begun_ns=begun_ns)
    tables.open.add(producer.transaction)
    tables.producers.become(producer, TransactionState.PREPARE_COMMIT)


def _restaged(
    tables: TransactionTables, producer: ProducerEntry, part: DecisionPart, *, begun_ns: int
) -> StagedTransaction:
    transaction = StagedTransaction(
        part.transactional_id,
        part.producer_id,
        producer.epoch,
        part.number,
        timeout_ms=producer.timeout_ms,
        begun_ns=begun_ns,
        started_at_ns=part.started_at_ns,
        limits=tables.limits,
    )
    transaction.partitions = {TopicPartition(one.topic, one.partition): one for one in part.partitions}
    transaction.positions = {(one.group, one.topic, one.partition): one for one in part.positions}
    transaction.acks = {(one.group, one.topic, one.partition): one for one in part.acks}
    return transaction


def _abort(tables: TransactionTables, producer: ProducerEntry) -> str:
    """End the transaction that was open and undecided when the broker stopped; its id."""
    if producer.state is TransactionState.PREPARE_COMMIT:  # the decision was not written
        tables.producers.turn(producer, TransactionTrigger.WITHDRAWN)
    if producer.state is TransactionState.ONGOING:
        tables.producers.turn(producer, TransactionTrigger.ABORTED)
    tables.producers.turn(producer, TransactionTrigger.COMPLETED)
    if producer.reason is None:
        producer.reason = AbortReason.RESTART
    tables.outbox.note(producer)
    tables.outcomes.aborted(len(tables.open), producer.reason)
    return producer.transaction_id


def _decode(stored: Mapping[bytes, bytes]) -> _StoredFacts:
    found = _StoredFacts([], [], [], {})
    for key, raw in stored.items():
        try:
            kind, name = key[: facts.KIND_BYTES], _text(key)
            if kind == facts.TRANSACTIONAL_KEY:
                holder = facts.decode(facts.SavedTransactional, key, raw)
                validate_transactional_id(name)
                found.producers.append(_restored_holder(name, holder))
            elif kind == facts.PRODUCER_KEY:
                plain = facts.decode(facts.SavedProducer, key, raw)
                used_at_ns = plain.used_at_ns
                found.producers.append(ProducerEntry(_whole(key), plain.epoch, used_at_ns, saved_at_ns=used_at_ns))
            elif kind == facts.DECISION_KEY:
                found.decisions.append(
                    _restored_decision(name, facts.decode(facts.SavedDecision, key, raw), {key: raw})
                )
            elif kind == facts.MARKER_KEY:
                found.markers.append((name, facts.decode(facts.SavedMarker, key, raw)))
            else:
                raise UnsupportedFormat(facts.TOPIC, f"{key!r}: no such kind of fact")
        except GoQueueError as error:
            found.unreadable[key] = str(error)
    return found


def _text(key: bytes) -> str:
    try:
        return key[facts.KIND_BYTES :].decode()
    except UnicodeDecodeError:
        raise UnsupportedFormat(facts.TOPIC, f"{key!r} is not valid UTF-8") from None


def _whole(key: bytes) -> int:
    try:
        return int(_text(key))
    except ValueError:
        raise UnsupportedFormat(facts.TOPIC, f"{key!r} names no producer") from None


def _restored_holder(transactional_id: str, saved: facts.SavedTransactional) -> ProducerEntry:
    return ProducerEntry(
        saved.producer_id,
        saved.epoch,
        saved.used_at_ns,
        transactional_id,
        saved.timeout_ms,
        saved.state,
        saved.number,
        saved.number + 1,
        saved.started_at_ns,
        saved.reason,
        saved.decision_id,
        saved_at_ns=saved.used_at_ns,
    )


def _restored_decision(id: str, saved: facts.SavedDecision, stored: Mapping[bytes, bytes | None]) -> Decision:
    return Decision(
        id=id,
        is_commit=True,
        parts=tuple(saved.parts),
        answer=TransactionOutcome(COMMITTED),
        marker=saved.marker,
        facts=stored,
    )
