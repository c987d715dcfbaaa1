"""Messages of one group on their way from its partition to a partition of another topic: dead letters and redrives.

    1. ask the target for its last batch from here
    2. note in the ledger which messages are in the next batch, with its epoch and its first sequence
    3. publish the batch; the target stores it as a whole or not at all
    4. note that the messages are done

Each step waits until the one before it is durable. The copies are batches of a producer whose id follows from the group
and the partition, so the target recognizes a batch that it has. If anything fails in between, here or there, the next
attempt begins with step 1. So no message is lost, and none is in the target twice.

A request that was given up may still arrive, at any time. So the target must never take one batch for another:

    a batch that was noted, and that the target may get    is published again with the same sequences, without others
    its messages of which some no longer exist             are published with the same first sequence; only one of the
                                                           two batches can be stored, and both have what is left
    other messages, while the last batch is not stored     get the next epoch, which fences that batch

For the last row the cursor remembers the last batch for each target, even if none of its messages is left. A batch
holds exactly the messages that were noted: records are read before the note and kept until it is durable, and messages
that no longer exist are done without a copy.

Moves that wait while a batch is under way are in the next batch together: a burst of single rejects costs one write of
the ledger and one publish. Messages of a batch are in the order of their offsets.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from goqueue import events
from goqueue.broker.delivery.dead_letter_target import DeadLetterTarget, DeadLetterTargets
from goqueue.broker.delivery.group_delivery import Copies, GroupDelivery
from goqueue.delivery import ledger
from goqueue.delivery.ledger import CopyBatch, DeadLettering
from goqueue.errors import GoQueueError, MessageError, NotLeader, TopicNotFound
from goqueue.record import kernel
from goqueue.record.header import OFFSET_MAX, Flags
from goqueue.record.headers import PRODUCER, HeaderPair
from goqueue.record.identity import BatchIdentity, derived_producer_id
from goqueue.record.message import StoredMessage
from goqueue.service.messages import StoredBatch
from goqueue.service.pending import Pending, S, T, chained
from goqueue.transactions.sequences import LastBatch

MESSAGES_MAX = 500
BATCH_BYTES = 1024 * 1024
_KEPT_FLAGS = int(Flags.COMPRESSED)


class CopyRoute(NamedTuple):
    """Where the messages of a group go."""

    topic: str
    number: int  # of the partition there, modulo the number of partitions
    is_redrive: bool


class CopyHooks(NamedTuple):
    """What the queue needs from its owner."""

    headers: Callable[[GroupDelivery, DeadLettering, StoredMessage], list[HeaderPair]]
    copied: Callable[[GroupDelivery, DeadLettering, DeadLetterTarget, int, Copies], None]
    failed: Callable[[str, bool], None]  # the topic, and whether it is the target, which could not be created
    later: Callable[[Callable[[], None]], None]  # call again after a while
    emptied: Callable[[], None]


class _Move:
    """Messages that were given to the queue together, and the answer about them."""

    __slots__ = ("change", "copied", "copies", "left")

    def __init__(self, change: DeadLettering, left: BitMap64) -> None:
        self.change = change  # without its batch
        self.left = left
        self.copies: Copies = {}
        self.copied: Pending[Copies] = Pending()


class CopyQueue:
    """The messages of one group on one partition that go to the same partition of another topic."""

    def __init__(
        self, group_delivery: GroupDelivery, route: CopyRoute, *, targets: DeadLetterTargets, hooks: CopyHooks
    ) -> None:
        self._group_delivery = group_delivery
        self._route = route
        self._targets = targets
        self._hooks = hooks
        self._moves: deque[_Move] = deque()
        self._noted: dict[CopyBatch, BitMap64] = {}  # in the ledger, and not known to be stored; one, but for damage
        self._noted_end = 0  # in the ledger
        self._stale = BitMap64()  # in the ledger with a batch that they are no longer in
        self._is_busy = False
        self._alone = 0  # so many messages are published one at a time: the target has refused one of several
        topic, partition = group_delivery.leader.origin
        # The salt belongs to the cursor. A group that was deleted and created again is another producer, or the batch
        # of the first one that is still on its way could be taken for one of the second.
        self._producer_id = derived_producer_id(
            topic.encode(), b"%d" % partition, group_delivery.group.encode(), group_delivery.stored.salt
        )

    def add(self, change: DeadLettering) -> Pending[Copies]:
        """Add messages; `run` copies them. Returns where the copies are. A failure is answered, and tried again."""
        offsets = ledger.offsets_of(change.offsets)
        if change.batch is not None:
            self._noted.setdefault(change.batch, BitMap64()).update(offsets)
        move = _Move(msgspec.structs.replace(change, target_offset=-1, batch=None), offsets)
        self._moves.append(move)
        return move.copied

    def run(self) -> None:
        """Copy messages until there are no more, or something has to be waited for."""
        if self._is_busy:
            return
        self._is_busy = True
        while self._moves:
            attempt = self._attempt()
            if not attempt.is_done:
                attempt.then(self._go_on)
                return
            if not self._is_to_continue(attempt):
                return
        self._is_busy = False
        self._hooks.emptied()

    def _go_on(self, attempt: Pending[None]) -> None:
        if self._is_to_continue(attempt):
            self._again()

    def _again(self) -> None:
        self._is_busy = False
        self.run()

    def _then(self, pending: Pending[S], step: Callable[[S], Pending[T]]) -> Pending[T]:
        """The next step, unless the partition or the group has ended meanwhile: then nothing more is done for it."""

        def go_on(value: S) -> Pending[T]:
            if ended := self._group_delivery.ended:
                raise ended
            return step(value)

        return chained(pending, go_on)

    # --- one batch -----------------------------------------------------------------------------

    def _attempt(self) -> Pending[None]:
        """Copy the next batch, or find out that it is copied already."""
        topic, number, is_redrive = self._route
        for batch in self._noted:  # the number of partitions may have changed since
            number = batch.partition
        like = None if is_redrive else self._group_delivery.leader.origin.topic
        opened = self._then(Pending.of(None), lambda _: self._targets.find(topic, number, like=like))
        opened.then(self._tell_of_creation)
        return self._then(opened, self._ask)

    def _tell_of_creation(self, opened: Pending[DeadLetterTarget]) -> None:
        if isinstance(opened.error, GoQueueError) and not self._group_delivery.ended:
            self._hooks.failed(self._route.topic, True)

    def _ask(self, target: DeadLetterTarget) -> Pending[None]:
        asked = target.last_batch(self._producer_id)
        return self._then(asked, lambda last: self._note_and_publish(target, last))

    def _note_and_publish(self, target: DeadLetterTarget, last: LastBatch | None) -> Pending[None]:
        self._finish_noted(target, last)
        again = self._batch_to_repeat(target, last)
        messages, gone = self._read(None if again is None else self._noted[again])
        if not messages:
            self._finish(gone)
            return Pending.of(None)
        offsets = BitMap64([message.offset for message in messages])
        epoch, first_sequence = self._next(target, last) if again is None else (again.epoch, again.first_sequence)
        identity = BatchIdentity(self._producer_id, epoch, first_sequence, len(messages))
        records = self._encoded(messages, offsets, identity)
        batch = CopyBatch(target.topic, target.topic_id, target.partition, epoch, first_sequence, len(messages))
        self._note(batch, offsets, gone)
        self._finish(gone)
        origin = events.CopyOrigin(*self._group_delivery.leader.origin, offsets)
        noted = self._group_delivery.leader.ledger.when_stored(self._noted_end)
        stored = self._then(noted, lambda _: target.publish(records, identity, origin))
        return self._then(stored, lambda answer: self._published(target, offsets, answer))

    def _finish_noted(self, target: DeadLetterTarget, last: LastBatch | None) -> None:
        """The messages of a noted batch that the target has are done."""
        for batch, offsets in list(self._noted.items()):
            if last is None or not _is_in(batch, target) or batch.epoch != last.epoch:
                continue
            if batch.end_sequence <= last.end_sequence:
                is_whole = batch.first_sequence == last.first_sequence and len(offsets) == last.record_count
                self._finish_copied(target, offsets, last.first_offset if is_whole else -1)

    def _batch_to_repeat(self, target: DeadLetterTarget, last: LastBatch | None) -> CopyBatch | None:
        """The noted batch that is not stored, if the target would store it. Others can never be stored there."""
        for batch in self._noted:
            expected = last.end_sequence if last is not None and last.epoch == batch.epoch else 0
            is_fenced = last is not None and last.epoch > batch.epoch
            if _is_in(batch, target) and batch.first_sequence == expected and not is_fenced:
                return batch
        self._stale = self._stale.union(*self._noted.values())
        self._noted = {}
        return None

    def _next(self, target: DeadLetterTarget, last: LastBatch | None) -> tuple[int, int]:
        """The epoch and the first sequence of the next batch: after the last one, if the target has that."""
        noted = self._group_delivery.stored.batches.get((target.topic, target.partition))
        if noted is not None and not _is_in(noted, target):
            noted = None
        if last is None:
            return (0, 0) if noted is None else (noted.epoch + 1, 0)
        is_last = noted is not None and (noted.epoch, noted.end_sequence) == (last.epoch, last.end_sequence)
        if is_last:
            return last.epoch, last.end_sequence
        return max(last.epoch, noted.epoch if noted else 0) + 1, 0

    def _read(self, noted: BitMap64 | None) -> tuple[list[StoredMessage], BitMap64]:
        """The messages of the next batch, and those before them that no longer exist. A noted batch is read whole."""
        wanted, gone = BitMap64(), BitMap64()
        most = 1 if self._alone else MESSAGES_MAX
        left = BATCH_BYTES
        if noted is not None:
            wanted = noted[:1] if self._alone else noted
            left = OFFSET_MAX
        else:
            for move in self._moves:
                wanted |= move.left[: most - len(wanted)]
                if len(wanted) == most:
                    break
        fetcher, origin = self._group_delivery.partition.fetcher, self._group_delivery.leader.origin
        messages: list[StoredMessage] = []
        while wanted and left > 0:
            found = fetcher.some(wanted, min(left, BATCH_BYTES))
            if found.offsets:
                messages += kernel.decode(found.records, origin, StoredMessage, verify=False)
            left -= len(found.records)
            gone |= found.gone
            wanted = wanted - found.offsets - found.gone
        return messages, gone

    def _encoded(self, messages: Sequence[StoredMessage], offsets: BitMap64, identity: BatchIdentity) -> bytearray:
        changes = {offset: move.change for move in self._moves for offset in move.left & offsets}
        headers = [self._hooks.headers(self._group_delivery, changes[one.offset], one) for one in messages]
        headers[0] = [(PRODUCER, identity.encode()), *headers[0]]
        return kernel.encode(
            [None if message.tombstone else message.value for message in messages],
            keys=[message.key for message in messages],
            headers=headers,
            priorities=[message.priority_code for message in messages],
            flags=[message.flags & _KEPT_FLAGS for message in messages],
        )

    def _note(self, batch: CopyBatch, offsets: BitMap64, gone: BitMap64) -> None:
        """Note the batch, unless the ledger has the same. Messages of another one that is not stored have none now."""
        if self._noted == {batch: offsets}:
            return
        stale = self._stale.union(*self._noted.values()) - offsets - gone
        changes = [move.change.of(part) for move in self._moves if (part := move.left & stale)]
        noted = [move.change.of(part) for move in self._moves if (part := move.left & offsets)]
        changes += [msgspec.structs.replace(change, batch=batch) for change in noted]
        self._noted_end = self._group_delivery.stored.note_copies(changes)
        self._noted, self._stale = {batch: offsets}, BitMap64()

    def _published(self, target: DeadLetterTarget, offsets: BitMap64, stored: StoredBatch) -> Pending[None]:
        self._alone = max(0, self._alone - 1)
        self._finish_copied(target, offsets, stored.first_offset)
        return Pending.of(None)

    def _finish_copied(self, target: DeadLetterTarget, offsets: BitMap64, first_offset: int) -> None:
        """The copies of these are stored from that offset of the target on; below 0 it is not known where."""
        places = enumerate(offsets, start=first_offset) if first_offset >= 0 else ()
        self._finish(offsets, target, {offset: (target.partition, place) for place, offset in places})

    def _finish(self, offsets: BitMap64, target: DeadLetterTarget | None = None, copies: Copies | None = None) -> None:
        """These are done: copied to the target, or gone. Raises `StorageError`."""
        if not offsets:
            return
        is_last = all(move.left.issubset(offsets) for move in self._moves)
        self._group_delivery.finish(offsets, flush=is_last)
        self._noted = {batch: left for batch, noted in self._noted.items() if (left := noted - offsets)}
        for move in self._moves:
            part = move.left & offsets
            if part and target is not None:
                found = {offset: copies[offset] for offset in part if offset in copies} if copies else {}
                move.copies |= found
                self._hooks.copied(self._group_delivery, move.change, target, len(part), found)
            move.left = move.left - part
        over = [move for move in self._moves if not move.left]
        self._moves = deque(move for move in self._moves if move.left)
        for move in over:
            move.copied.resolve(move.copies)

    # --- failures ------------------------------------------------------------------------------

    def _is_to_continue(self, attempt: Pending[None]) -> bool:
        """Whether to go on at once; if not, the queue has ended or is called again later."""
        try:
            attempt.result()
        except GoQueueError as error:
            return self._failed(error)
        return True

    def _failed(self, error: GoQueueError) -> bool:
        if ended := self._group_delivery.ended:
            self._end(ended)
            return False
        if isinstance(error, TopicNotFound) and self._route.is_redrive:  # the target was deleted
            self._group_delivery.cancel_dead_letters(BitMap64().union(*(move.left for move in self._moves)))
            self._end(error)
            return False
        self._hooks.failed(self._group_delivery.leader.origin.topic, False)
        if isinstance(error, MessageError):
            was_alone, self._alone = self._alone, MESSAGES_MAX
            if not was_alone:
                return True
            self._set_aside(error)
        elif not isinstance(error, NotLeader):  # with another leader the next attempt is likely to succeed
            for move in self._moves:
                move.copied.fail(error)
        self._hooks.later(self._again)
        return False

    def _set_aside(self, error: MessageError) -> None:
        """The target refuses a message that was published alone: the others go before it."""
        refused = next(iter(self._noted.values()), self._moves[0].left)[:1]
        self._stale |= refused
        self._noted = {batch: left for batch, noted in self._noted.items() if (left := noted - refused)}
        move = next(move for move in self._moves if move.left.intersect(refused))
        move.copied.fail(error)
        move.left = move.left - refused
        if not move.left:
            self._moves.remove(move)
        self._moves.append(_Move(move.change, refused))

    def _end(self, error: GoQueueError) -> None:
        moves, self._moves = self._moves, deque()
        self._noted, self._stale = {}, BitMap64()
        self._is_busy = False
        self._hooks.emptied()
        for move in moves:
            move.copied.fail(error)


def _is_in(batch: CopyBatch, target: DeadLetterTarget) -> bool:
    """Whether the batch goes to that partition, of the same topic and not only of the same name."""
    return (batch.topic_id, batch.partition) == (target.topic_id, target.partition)
