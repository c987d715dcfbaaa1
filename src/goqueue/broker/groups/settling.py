"""Settling: what a member says about messages that it has, and what becomes of them.

    settle ──> the delivery that the nonce names ──> ledger ──> answered when the ledger vouches for it

Whatever is refused has changed nothing, and each message is judged for itself. Acks inside a transaction are held until
it is decided.
"""

import sys
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from pyroaring import BitMap64

from goqueue.broker.delivery.group_cursors import GroupCursor
from goqueue.broker.delivery.partition_delivery import Graves, PartitionDelivery, Settling
from goqueue.broker.groups.places import Place, Places, Topics
from goqueue.broker.groups.polling import Polling
from goqueue.clock import Clock
from goqueue.delivery.offsets import between
from goqueue.delivery.receipts import Receipt, is_nonce
from goqueue.errors import (
    GoQueueError,
    InvalidRequest,
    PartitionNotFound,
    ReceiptMalformed,
    ReceiptUnknown,
    RequestTooLarge,
    TopicNotFound,
)
from goqueue.groups.coordinator import Coordinator
from goqueue.record.header import Buffer
from goqueue.service.groups import EXTENSION_NS_MAX, RECEIPTS_MAX
from goqueue.service.pending import Pending, after
from goqueue.wire import reports

ACTIONS = ("ack", "nack", "reject", "extend", "release")
_OUTCOMES = {"ack": "ack", "nack": "requeued", "reject": "rejected", "extend": "extended", "release": "released"}


class OpenTransaction(Protocol):
    """A transaction that acks can be a part of."""

    @property
    def key(self) -> tuple[int, int]: ...
    def add_acks(self, group: str, topic: str, partition: int, offsets: BitMap64) -> None: ...


class Settlements:
    """Settles messages of all groups."""

    def __init__(
        self, coordinator: Coordinator, topics: Topics, places: Places, polling: Polling, *, clock: Clock
    ) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._places = places
        self._polling = polling
        self._clock = clock
        self.open_transaction: Callable[[str], OpenTransaction]  # given by the broker; raises what is wrong with the id

    def settle(
        self, receipts: Sequence[str], settlement: reports.Settlement
    ) -> Pending[list[reports.SettledMessage | GoQueueError]]:
        """Settle messages by their receipts, each for itself."""
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
        floors: dict[GroupCursor, tuple[PartitionDelivery, int]] = {}
        for index, text in enumerate(receipts):
            try:
                pending = self._settle_one(Receipt.parse(text), settlement, floors)
            except GoQueueError as error:
                pending = Pending.failed(error)
            pending.then(partial(settled, index))
        for one, (delivery, floor) in floors.items():
            delivery.tell_position(one, floor)
        self._polling.run_woken()
        return gathered

    def _settle_one(
        self,
        receipt: Receipt,
        settlement: reports.Settlement,
        floors: dict[GroupCursor, tuple[PartitionDelivery, int]],
    ) -> Pending[reports.SettledMessage]:
        """Settle one message; where its cursor was before the first one is noted."""
        delivery, one = self._addressee(receipt.topic, receipt.partition, receipt.offset, receipt.nonce)
        offsets = BitMap64([receipt.offset])
        name = (receipt.topic, receipt.partition, receipt.offset)
        delivery_id = receipt.delivery_id
        if delivery.nonce(one, delivery_id) != receipt.nonce:
            raise ReceiptUnknown(*name)
        if not one.cursor.leased(delivery_id, offsets, now_ns=self._clock.monotonic_ns()):
            raise delivery.refusal(one, delivery_id, receipt.offset)
        if receipt.delivery_count != one.cursor.deliveries_of(receipt.offset) + 1:
            raise ReceiptUnknown(*name)
        member_id = one.cursor.deliveries[delivery_id].member
        floors.setdefault(one, (delivery, one.cursor.floor))
        settling = self._settle(delivery, one, delivery_id, offsets, settlement)
        in_flight = self._places.in_flight(one.group, member_id)
        outcome = "held" if settlement.transaction_id else _OUTCOMES[settlement.action]

        def answer(graves: Graves) -> reports.SettledMessage:
            grave = graves.get(receipt.offset)
            return reports.SettledMessage(
                topic=receipt.topic,
                partition=receipt.partition,
                offset=receipt.offset,
                action=outcome if grave is None or settlement.action == "reject" else "dlq",
                committed_offset=one.cursor.floor,
                in_flight_count=in_flight,
                delivery_count=settling.next_count,
                at_ns=settling.at_ns,
                dlq_topic=delivery.dlq_topic if grave else "",
                dlq_partition=grave[0] if grave else -1,
                dlq_offset=grave[1] if grave else -1,
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
        delivery, one = self._addressee(topic, partition, first, nonce)
        delivery_id = Receipt(topic, partition, first, 0, nonce).delivery_id
        if delivery.nonce(one, delivery_id) != nonce:
            raise ReceiptUnknown(topic, partition, first)
        lease = one.cursor.deliveries.get(delivery_id)
        if not wanted and lease is not None:
            wanted = lease.offsets.copy()
        member_id = lease.member if lease else ""
        held = one.cursor.leased(delivery_id, wanted, now_ns=self._clock.monotonic_ns())
        refused = []
        if len(held) < len(wanted):
            for offset in wanted - held:
                error = delivery.refusal(one, delivery_id, offset)
                refused.append(reports.Refusal(offset, error.code, str(error), error.facts()))
        if not held:
            in_flight = self._places.in_flight(one.group, member_id)
            return Pending.of(reports.SettledBatch(0, refused, one.cursor.floor, in_flight))
        floor = one.cursor.floor
        settling = self._settle(delivery, one, delivery_id, held, settlement)
        delivery.tell_position(one, floor)
        in_flight = self._places.in_flight(one.group, member_id)
        self._polling.run_woken()

        def answer(graves: Graves) -> reports.SettledBatch:
            committed = one.cursor.floor
            return reports.SettledBatch(len(held), refused, committed, in_flight, len(graves), settling.at_ns)

        return after(settling.stored, answer)

    # --- transactions --------------------------------------------------------------------------

    def apply_acks(
        self, group: str, topic: str, partition: int, offsets: BitMap64, key: tuple[int, int], *, is_again: bool
    ) -> Pending[None]:
        """Acks of a committed transaction take effect; `is_again` after a restart, when nothing is held any more."""
        try:
            delivery = self._topics.delivery(self._topics.leader(topic, partition))
        except (TopicNotFound, PartitionNotFound):
            return Pending.of(None)
        if is_again and self._coordinator.find(group) is not None:  # a power cut may have taken its cursor
            self._places.at(group, delivery.leader.origin)
        one = delivery.cursors.get(group)
        if one is None:
            return Pending.of(None)
        if is_again:
            there = between(offsets, 0, delivery.leader.log.next_offset)  # others get the offsets of what was lost
            end = delivery.settle_all(one, there, one.metadata)
        else:
            end = delivery.finish_held(one, key)
        return delivery.leader.ledger.when_stored(end)

    def release_acks(self, group: str, topic: str, partition: int, key: tuple[int, int]) -> None:
        """What an aborted transaction has acknowledged is delivered again."""
        with suppress(TopicNotFound, PartitionNotFound):
            delivery = self._topics.delivery(self._topics.leader(topic, partition))
            if group in delivery.cursors:
                delivery.let_go(delivery.cursors[group], key)

    # --- inside --------------------------------------------------------------------------------

    def _settle(
        self,
        delivery: PartitionDelivery,
        one: GroupCursor,
        delivery_id: int,
        offsets: BitMap64,
        settlement: reports.Settlement,
    ) -> Settling:
        if settlement.transaction_id:
            transaction = self.open_transaction(settlement.transaction_id)
            transaction.add_acks(one.group, *delivery.leader.origin, offsets)
            settling = delivery.hold(one, transaction.key, delivery_id, offsets)
        else:
            settling = delivery.settle(one, delivery_id, offsets, settlement)
        self._polling.wake(one.group)
        return settling

    def _check(self, settlement: reports.Settlement) -> None:
        """Whether it can be asked for at all."""
        _check(settlement)
        if settlement.transaction_id:
            if settlement.action != "ack":
                raise InvalidRequest("only an ack can be part of a transaction", path="transaction_id")
            self.open_transaction(settlement.transaction_id)

    def _addressee(self, topic: str, partition: int, offset: int, nonce: str) -> Place:
        """The delivery and the cursor that gave out the receipt."""
        try:
            delivery = self._topics.delivery(self._topics.leader(topic, partition))
        except GoQueueError:
            raise ReceiptUnknown(topic, partition, offset) from None
        one = delivery.find(Receipt(topic, partition, offset, 0, nonce).group_tag)
        if one is None:
            raise ReceiptUnknown(topic, partition, offset)
        return Place(delivery, one)


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
