"""The cursors of the groups on one partition, and how the ledger remembers them.

A change is written down before it counts, so what the disk refuses has not happened. What has happened in any case, and
was refused, is made up for: the next thing that is written is the whole cursor. That also replaces changes when they
have become more than the cursor itself.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from pyroaring import BitMap64

from goqueue.broker.partition.leader import PartitionLeader
from goqueue.broker.partition.ledger import Fact
from goqueue.clock import Clock
from goqueue.delivery import ledger
from goqueue.delivery.cursor import Cursor
from goqueue.delivery.key_order import KeyOrder
from goqueue.delivery.lane_stats import LaneStats
from goqueue.delivery.ledger import Burial, Change
from goqueue.delivery.receipts import group_tag
from goqueue.errors import StorageError

CHANGES_MAX = 100_000
CHANGE_BYTES_MIN = 256 * 1024
"""A cursor is written whole when its changes are larger than that, and than twice the cursor."""
CHANGE_OVERHEAD_BYTES = 50
GIVEN_UP_MAX = 10_000
"""So many dead letters are remembered, to tell a late ack of one from a second ack."""


class Handed(NamedTuple):
    """What a member of a group without leases was given and is not committed: before its last poll of this partition
    that brought something, and by that one, whose number it is.
    """

    before: BitMap64
    last: BitMap64
    poll: int


NOTHING_HANDED: Final = Handed(BitMap64(), BitMap64(), 0)


class GroupCursor:
    """A group's cursor on this partition, and what is needed to write it down."""

    __slots__ = (
        "_lane_stats",
        "burials",
        "change_bytes",
        "change_keys",
        "changes",
        "cursor",
        "expired_by_member",
        "expired_leases",
        "given_up",
        "group",
        "handed",
        "is_dirty",
        "keys",
        "lost",
        "metadata",
        "salt",
        "snapshot_bytes",
        "tag",
    )

    def __init__(self, group: str, cursor: Cursor, salt: bytes) -> None:
        self.group = group
        self.tag = group_tag(group)
        self.salt = salt
        self.cursor = cursor
        self.burials: list[Burial] = []
        self.metadata = ""
        self.changes = 0
        self.change_keys = (
            0  # how many keys of changes the ledger has; those beyond `changes` are older than the cursor
        )
        self.change_bytes = 0
        self.snapshot_bytes = 0
        self.expired_leases = 0  # since the broker started
        self.expired_by_member: dict[str, int] = {}
        self.is_dirty = False  # memory knows more than the ledger
        self.keys: KeyOrder | None = None
        self._lane_stats: LaneStats | None = None  # a restart makes thousands of cursors, most of which stay idle
        self.handed: dict[str, Handed] = {}  # by member, without leases
        self.given_up = BitMap64()  # dead letters since the start whose last lease was over, the newest of them
        self.lost = BitMap64()  # damaged records that the cursor passed over and no poll was told of

    @property
    def lane_stats(self) -> LaneStats:
        """How the lanes of the group have moved since the start."""
        if self._lane_stats is None:
            self._lane_stats = LaneStats()
        return self._lane_stats

    def note_given_up(self, offsets: BitMap64) -> None:
        """The last leases of these were over, and they become dead letters."""
        self.given_up |= offsets
        if len(self.given_up) > GIVEN_UP_MAX:
            self.given_up.remove_range(0, self.given_up[len(self.given_up) - GIVEN_UP_MAX])

    def without_burial(self, burial: Burial) -> list[Burial]:
        """The burials that are under way, but for that one."""
        return [other for other in self.burials if other.offsets != burial.offsets]


class GroupCursors:
    """All cursors on one partition. `make_cursor` makes one that begins at an offset."""

    def __init__(
        self,
        leader: PartitionLeader,
        *,
        clock: Clock,
        make_cursor: Callable[[int], Cursor],
        make_salt: Callable[[], bytes],
    ) -> None:
        self.by_group: dict[str, GroupCursor] = {}
        self._by_tag: dict[bytes, GroupCursor] = {}
        self._live = leader
        self._clock = clock
        self._make_cursor = make_cursor
        self._make_salt = make_salt

    @property
    def ledger_shift_ns(self) -> int:
        """From the monotonic clock to that of the ledger."""
        return self.ledger_time(self._clock.wall_ns()) - self._clock.monotonic_ns()

    def ledger_time(self, wall_ns: int) -> int:
        """The wall clock as the ledger has it, whose records never go back in time.

        All times in the ledger are relative to that of the record they stand in. So whatever the wall clock shows after
        a restart, no lease and no backoff is longer than it was when it was written down.
        """
        return max(wall_ns, self._live.ledger.log.last_timestamp)

    def find(self, tag: bytes) -> GroupCursor | None:
        """The cursor that gave out receipts with that tag."""
        return self._by_tag.get(tag)

    def begin(self, group: str, floor: int) -> GroupCursor:
        """A new cursor that begins at the offset, and is written down."""
        one = self._add(GroupCursor(group, self._make_cursor(floor), self._make_salt()))
        self.write_whole(one, one.cursor)
        return one

    def forget(self, group: str) -> int:
        """The group is deleted; the offset in the ledger behind which that is certain."""
        one = self.by_group.get(group)
        if one is None:
            return 0
        facts: list[Fact] = [(ledger.cursor_key(group), None)]
        facts += [(ledger.change_key(group, number), None) for number in range(one.change_keys)]
        end = self._live.ledger.write(facts)
        self._drop(one)
        self._live.wrote_ledger()
        return end

    def note(self, one: GroupCursor, change: Change, *, flush: bool = True) -> int:
        """Write down what happened to the cursor; the offset behind it."""
        raw = ledger.encode(change)
        is_much = one.change_bytes > max(CHANGE_BYTES_MIN, 2 * one.snapshot_bytes) or one.changes >= CHANGES_MAX
        if is_much or one.is_dirty:
            self.write_whole(one, one.cursor, flush=False)
        try:
            end = self._live.ledger.write([(ledger.change_key(one.group, one.changes), raw)], flush=flush)
        except StorageError:
            one.is_dirty = True
            raise
        one.changes += 1
        one.change_keys = max(one.change_keys, one.changes)
        one.change_bytes += len(raw) + len(one.group) + CHANGE_OVERHEAD_BYTES
        self._live.wrote_ledger()
        return end

    def note_if_possible(self, one: GroupCursor, change: Change) -> None:
        """Write down what has happened already. If the disk does not take it, the whole cursor is written later."""
        with suppress(StorageError):
            self.note(one, change, flush=False)

    def write_whole(self, one: GroupCursor, cursor: Cursor, *, flush: bool = True) -> int:
        """Write down the whole cursor."""
        saved = ledger.snapshot(
            cursor, salt=one.salt, burials=one.burials, metadata=one.metadata, shift_ns=self.ledger_shift_ns
        )
        raw = ledger.encode(saved)
        try:
            end = self._live.ledger.write([(ledger.cursor_key(one.group), raw)], flush=flush)
        except StorageError:
            one.is_dirty = True
            raise
        one.changes = one.change_bytes = 0
        one.snapshot_bytes = len(raw)
        one.is_dirty = False
        self._live.wrote_ledger()
        return end

    def replay(self, key: bytes, value: bytes | None, *, shift_ns: int) -> None:
        """Take in a fact of the ledger, which is read from its beginning; those about something else are left alone.

        `shift_ns` is `ledger_shift_ns` when the reading began.
        """
        try:
            self._replay(key, value, shift_ns)
        except Exception as error:  # bytes of any kind may be there; what is lost with a fact is delivered once more
            self._live.unreadable.pass_over(key, error)

    def _replay(self, key: bytes, value: bytes | None, shift_ns: int) -> None:
        entry = ledger.decode(key, value)
        if entry is None:
            return
        one = self.by_group.get(entry.group)
        if isinstance(entry.value, ledger.Snapshot):
            self._restore(entry.group, entry.value, len(value or b""), shift_ns)
        elif one is not None and entry.value is None:
            self._drop(one)
        elif one is not None and entry.value is not None:
            self._replay_change(one, entry.value, shift_ns)
            one.changes += 1
            one.change_keys = max(one.change_keys, ledger.change_number(key) + 1)
            one.change_bytes += len(value or b"") + len(key)

    def _restore(self, group: str, saved: ledger.Snapshot, size: int, shift_ns: int) -> None:
        one = GroupCursor(group, self._make_cursor(saved.floor), saved.salt)
        before = self.by_group.get(group)
        one.change_keys = before.change_keys if before is not None else 0
        one.burials = list(saved.burials)
        one.metadata = saved.metadata
        one.snapshot_bytes = size
        ledger.restore(one.cursor, saved, shift_ns=shift_ns)
        self._add(one)

    def _replay_change(self, one: GroupCursor, change: Change, shift_ns: int) -> None:
        ledger.replay(one.cursor, change, shift_ns=shift_ns, now_ns=self._clock.monotonic_ns())
        match change:
            case Burial():
                one.burials = [*one.without_burial(change), change]
            case ledger.Finished(raw) if one.burials:
                done = ledger.offsets_of(raw)
                one.burials = [other for other in one.burials if not ledger.offsets_of(other.offsets).issubset(done)]
            case ledger.Committed(_, metadata):
                one.metadata = metadata
            case _:
                pass

    def _add(self, one: GroupCursor) -> GroupCursor:
        self.by_group[one.group] = one
        self._by_tag[one.tag] = one
        return one

    def _drop(self, one: GroupCursor) -> None:
        del self.by_group[one.group], self._by_tag[one.tag]
