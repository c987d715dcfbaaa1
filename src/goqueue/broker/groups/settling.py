"""Settling: ack, nack, reject, extend and release of leased messages.

    settle ──> the group and the delivery that the nonce names ──> ledger ──> answered when the ledger is durable

A refused request has changed nothing, and each message is checked separately. Acks inside a transaction are held
until it is decided.
"""

import sys
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from pyroaring import BitMap64

from goqueue.broker.delivery.group_delivery import Copies, GroupDelivery, Settling
from goqueue.broker.groups.group_deliveries import GroupDeliveries
from goqueue.broker.groups.polling import Polling
from goqueue.broker.local_partitions import LocalPartitions
from goqueue.broker.partition.leader import PartitionLeader
from goqueue.clock import Clock
from goqueue.delivery.offsets import between
from goqueue.delivery.receipts import Receipt, delivery_of, is_nonce, tag_of
from goqueue.errors import (
    GoQueueError,
    InvalidRequest,
    NotLeader,
    ReceiptMalformed,
    ReceiptUnknown,
    RequestTooLarge,
)
from goqueue.record.header import Buffer
from goqueue.service.groups import EXTENSION_NS_MAX, RECEIPTS_MAX
from goqueue.service.pending import Pending, after
from goqueue.wire import reports

ACTIONS = ("ack", "nack", "reject", "extend", "release")
_OUTCOMES = {"ack": "ack", "nack": "requeued", "reject": "rejected", "extend": "extended", "release": "released"}


class AckTransaction(Protocol):
    """A transaction that acks can be a part of."""

    @property
    def key(self) -> tuple[int, int]: ...
    def add_acks(self, group: str, leader: PartitionLeader, offsets: BitMap64) -> None: ...


class Settlements:
    """Settles messages of all groups."""

    def __init__(
        self,
        topics: LocalPartitions,
        deliveries: GroupDeliveries,
        polling: Polling,
        *,
        is_gone: Callable[[str], bool],
        clock: Clock,
    ) -> None:
        self._topics = topics
        self._deliveries = deliveries
        self._polling = polling
        self._is_gone = is_gone
        self._clock = clock
        self.open_transaction: Callable[[str], AckTransaction]  # set by the broker; raises for an id that is not open

    def settle(
        self, receipts: Sequence[str], settlement: reports.Settlement
    ) -> Pending[list[reports.SettledMessage | GoQueueError]]:
        """Settle messages by their receipts, each independently of the others."""
        if len(receipts) > RECEIPTS_MAX:
            raise RequestTooLarge(len(receipts), RECEIPTS_MAX)
        self._check(settlement)
        results: list[reports.SettledMessage | GoQueueError | None] = [None] * len(receipts)
        gathered: Pending[list[reports.SettledMessage | GoQueueError]] = Pending()
        left = len(receipts)

        def settled(index: int, done: Pending[reports.SettledMessage]) -> None:
            nonlocal left
            try:
                results[index] = done.result()
            except GoQueueError as error:
                results[index] = error
            left -= 1
            if not left:
                gathered.resolve([result for result in results if result is not None])

        if not receipts:
            gathered.resolve([])
        floors: dict[GroupDelivery, int] = {}
        for index, text in enumerate(receipts):
            try:
                pending = self._settle_one(Receipt.parse(text), settlement, floors)
            except GoQueueError as error:
                pending = Pending.failed(error)
            pending.then(partial(settled, index))
        for group_delivery, floor in floors.items():
            group_delivery.tell_position(floor)
        self._polling.run_woken()
        return gathered

    def _settle_one(
        self, receipt: Receipt, settlement: reports.Settlement, floors: dict[GroupDelivery, int]
    ) -> Pending[reports.SettledMessage]:
        """Settle one message. The floor of its cursor before its first message goes to `floors`."""
        group_delivery = self._find(receipt.topic, receipt.partition, receipt.offset, receipt.nonce)
        cursor = group_delivery.cursor
        offsets = BitMap64([receipt.offset])
        name = (receipt.topic, receipt.partition, receipt.offset)
        delivery_id = delivery_of(receipt.nonce)
        if group_delivery.nonce(delivery_id) != receipt.nonce:
            raise ReceiptUnknown(*name)
        if not cursor.leased(delivery_id, offsets, now_ns=self._clock.monotonic_ns()):
            raise group_delivery.refusal(delivery_id, receipt.offset)
        if receipt.delivery_count != cursor.deliveries_of(receipt.offset) + 1:
            raise ReceiptUnknown(*name)
        member_id = cursor.deliveries[delivery_id].member
        floors.setdefault(group_delivery, cursor.floor)
        settling = self._settle(group_delivery, delivery_id, offsets, settlement)
        in_flight = self._deliveries.in_flight(group_delivery.group, member_id)
        outcome = "held" if settlement.transaction_id else _OUTCOMES[settlement.action]

        def answer(dead_letters: Copies) -> reports.SettledMessage:
            dead_letter = dead_letters.get(receipt.offset)
            dlq_partition, dlq_offset = dead_letter or (-1, -1)
            return reports.SettledMessage(
                topic=receipt.topic,
                partition=receipt.partition,
                offset=receipt.offset,
                action=outcome if dead_letter is None or settlement.action == "reject" else "dlq",
                committed_offset=group_delivery.cursor.floor,
                in_flight_count=in_flight,
                delivery_count=settling.next_count,
                at_ns=settling.at_ns,
                dlq_topic=group_delivery.partition.dead_letter_topic if dead_letter else "",
                dlq_partition=dlq_partition,
                dlq_offset=dlq_offset,
                reason=settlement.reason,
            )

        return after(settling.stored, answer)

    def settle_batch(
        self, topic: str, partition: int, nonce: str, offsets: Buffer, settlement: reports.Settlement
    ) -> Pending[reports.SettledBatch]:
        """Settle messages of one delivery."""
        self._check(settlement)
        if not is_nonce(nonce):
            raise ReceiptMalformed(nonce)
        wanted = _offsets(offsets)
        first = wanted.min() if wanted else 0
        group_delivery = self._find(topic, partition, first, nonce)
        cursor = group_delivery.cursor
        delivery_id = delivery_of(nonce)
        if group_delivery.nonce(delivery_id) != nonce:
            raise ReceiptUnknown(topic, partition, first)
        lease = cursor.deliveries.get(delivery_id)
        if not wanted and lease is not None:
            wanted = lease.offsets.copy()
        member_id = lease.member if lease else ""
        held = cursor.leased(delivery_id, wanted, now_ns=self._clock.monotonic_ns())
        refused = []
        if len(held) < len(wanted):
            for offset in wanted - held:
                error = group_delivery.refusal(delivery_id, offset)
                refused.append(reports.Refusal(offset, error.code, str(error), error.facts()))
        if not held:
            in_flight = self._deliveries.in_flight(group_delivery.group, member_id)
            return Pending.of(reports.SettledBatch(0, refused, cursor.floor, in_flight))
        floor = cursor.floor
        settling = self._settle(group_delivery, delivery_id, held, settlement)
        group_delivery.tell_position(floor)
        in_flight = self._deliveries.in_flight(group_delivery.group, member_id)
        self._polling.run_woken()

        def answer(dead_letters: Copies) -> reports.SettledBatch:
            committed = group_delivery.cursor.floor
            return reports.SettledBatch(len(held), refused, committed, in_flight, len(dead_letters), settling.at_ns)

        return after(settling.stored, answer)

    # --- transactions --------------------------------------------------------------------------

    def apply_acks(
        self, group: str, leader: PartitionLeader, offsets: BitMap64, key: tuple[int, int], *, is_again: bool
    ) -> Pending[None]:
        """Acks of a committed transaction take effect. With `is_again`, after a restart, also those that it no longer
        holds: a power failure may have lost what the ledger knew of them. Done when that is committed.
        """
        delivery = self._topics.delivery(leader)
        if is_again and not self._is_gone(group):
            self._deliveries.at(group, leader.origin)
        group_delivery = delivery.groups.get(group)
        if group_delivery is None:
            return Pending.of(None)
        end = group_delivery.finish_held(key)
        if is_again:
            # New records get the offsets of lost ones, which were never acknowledged.
            left = group_delivery.cursor.not_done(between(offsets, 0, leader.log.next_offset))
            end = group_delivery.commit_offsets(left, group_delivery.stored.metadata) if left else end
        return leader.ledger.when_stored(end or leader.ledger.log.next_offset)

    def release_acks(self, group: str, leader: PartitionLeader, key: tuple[int, int]) -> Pending[None]:
        """Deliver again what an aborted transaction has acknowledged. If that is lost, it is aborted again."""
        group_delivery = self._topics.delivery(leader).groups.get(group)
        if group_delivery is not None:
            group_delivery.abort(key)
        return Pending.of(None)

    # --- inside --------------------------------------------------------------------------------

    def _settle(
        self, group_delivery: GroupDelivery, delivery_id: int, offsets: BitMap64, settlement: reports.Settlement
    ) -> Settling:
        if settlement.transaction_id:
            transaction = self.open_transaction(settlement.transaction_id)
            transaction.add_acks(group_delivery.group, group_delivery.leader, offsets)
            group_delivery.hold(transaction.key, delivery_id, offsets)
            settling = Settling(Pending.of({}))
        else:
            settling = group_delivery.settle(delivery_id, offsets, settlement)
        self._polling.wake(group_delivery.group)
        return settling

    def _check(self, settlement: reports.Settlement) -> None:
        """Raise `InvalidRequest`, or an error about the transaction."""
        _check(settlement)
        if settlement.transaction_id:
            if settlement.action != "ack":
                raise InvalidRequest("only an ack can be part of a transaction", path="transaction_id")
            self.open_transaction(settlement.transaction_id)

    def _find(self, topic: str, partition: int, offset: int, nonce: str) -> GroupDelivery:
        """The group on the partition that issued the receipt. Raises `ReceiptUnknown`."""
        try:
            delivery = self._topics.delivery(self._topics.leader(topic, partition))
        except NotLeader:  # the receipt may be good
            raise
        except GoQueueError:
            raise ReceiptUnknown(topic, partition, offset) from None
        found = delivery.find(tag_of(nonce))
        if found is None:
            raise ReceiptUnknown(topic, partition, offset)
        return found


def _offsets(raw: Buffer) -> BitMap64:
    if not len(raw):
        return BitMap64()
    if len(raw) % 8:
        raise InvalidRequest("offsets must be whole numbers of 64 bits")
    numbers = array("Q")
    numbers.frombytes(raw)
    if sys.byteorder == "big":  # they come in little-endian
        numbers.byteswap()
    return BitMap64(numbers)


def _check(settlement: reports.Settlement) -> None:
    if settlement.action not in ACTIONS:
        raise InvalidRequest(f"invalid action {settlement.action!r}: must be one of {' '.join(ACTIONS)}", path="action")
    if settlement.action == "extend" and not 0 < (settlement.delay_ns or 0) <= EXTENSION_NS_MAX:
        raise InvalidRequest("invalid timeout: must be more than 0 and at most 12h", path="timeout")
    if settlement.delay_ns is not None and settlement.delay_ns < 0:
        raise InvalidRequest("invalid delay: must not be negative", path="delay")
