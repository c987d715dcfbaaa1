"""Each delayed message fires once, never early, and never if it was cancelled: through restarts and clock jumps."""

import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.delivery.delay_index import BLOCK_ENTRIES, HEADER_BYTES, DelayState
from goqueue.delivery.delays import SETTLED_MAX, DelayCounts, DelayEntry, Fired, PartitionDelays, Restored
from goqueue.delivery.wheel import TICK_NS

NOW = 1_700_000_000 * 10**9
SECOND = 10**9
HOUR = 3_600 * SECOND
ENTRY = struct.Struct("=QqII")
CANCELLED, DELIVERED, EXPIRED, PENDING = (
    DelayState.CANCELLED, DelayState.DELIVERED, DelayState.EXPIRED, DelayState.PENDING
)  # fmt: skip


def entries(dues: dict[int, int], *, key_crc: int = 0, priority: int = 2) -> bytes:
    return b"".join(ENTRY.pack(offset, due_ns, key_crc, priority) for offset, due_ns in sorted(dues.items()))


def waiting_for(dues: dict[int, int]) -> PartitionDelays:
    delays = PartitionDelays(now_ns=NOW)
    delays.schedule(entries(dues), now_ns=NOW)
    return delays


def restored(raw: bytes, *, next_offset: int = 10**9, now_ns: int = NOW) -> PartitionDelays:
    delays = PartitionDelays(now_ns=now_ns)
    delays.restore(raw, next_offset=next_offset)
    return delays


def test_only_what_is_due_later_waits() -> None:
    delays = PartitionDelays(now_ns=NOW)

    waiting = delays.schedule(entries({1: NOW - 1, 2: NOW, 3: NOW + 1, 4: 0, 9: NOW + HOUR}), now_ns=NOW)

    assert list(waiting) == list(delays.waiting) == [3, 9]
    assert delays.due_ns(9) == NOW + HOUR
    assert delays.due_ns(2) is None
    assert delays.find(2) is None
    assert delays.counts == DelayCounts(scheduled=2, delivered=0, cancelled=0, expired=0, pending=2)
    assert (delays.total_delay_ns, delays.delay_count) == (HOUR + 1, 2)


def test_nothing_is_nothing() -> None:
    delays = PartitionDelays(now_ns=NOW)

    assert not delays.schedule(b"", now_ns=NOW)
    assert delays.fire(NOW + HOUR) == Fired(BitMap64(), NOW + HOUR)
    assert delays.next_ns is None
    assert delays.page(skip=0, limit=10) == []
    assert not delays.candidates(0)
    assert not delays.drop(10**9)
    assert not delays.cancel_many(BitMap64([1, 2]))
    assert not delays.cancel(1)
    assert not delays.reschedule(1, NOW, now_ns=NOW)


def test_they_fire_at_their_time_and_say_how_late_the_first_was() -> None:
    delays = waiting_for({1: NOW + 2 * SECOND, 2: NOW + SECOND, 3: NOW + HOUR})

    assert not delays.fire(NOW + SECOND - 1).offsets
    fired = delays.fire(NOW + 3 * SECOND)

    assert fired == Fired(BitMap64([1, 2]), NOW + SECOND)
    assert not delays.fire(NOW + 3 * SECOND).offsets
    assert list(delays.waiting) == [3]
    assert delays.find(1) == DelayEntry(1, NOW + 2 * SECOND, DELIVERED, 2)
    assert delays.counts == DelayCounts(scheduled=3, delivered=2, cancelled=0, expired=0, pending=1)


def test_the_set_of_what_waits_stays_the_same_object() -> None:
    delays = PartitionDelays(now_ns=NOW)
    waiting = delays.waiting
    delays.schedule(entries({offset: NOW + HOUR + offset for offset in range(9)}), now_ns=NOW)
    delays.cancel(1)
    delays.cancel_many(BitMap64([2]))
    delays.drop(1)
    assert list(waiting) == [3, 4, 5, 6, 7, 8]
    delays.fire(NOW + 2 * HOUR)

    assert waiting is delays.waiting
    assert not waiting


def test_cancelled_means_never_delivered() -> None:
    delays = waiting_for(dict.fromkeys(range(5), NOW + SECOND))

    assert delays.cancel(1)
    assert not delays.cancel(1)
    assert list(delays.cancel_many(BitMap64([0, 1, 2, 77]))) == [0, 2]

    assert list(delays.fire(NOW + HOUR).offsets) == [3, 4]
    assert not delays.cancel(3)  # too late
    assert delays.find(3) == DelayEntry(3, NOW + SECOND, DELIVERED, 2)
    assert delays.find(0) == DelayEntry(0, NOW + SECOND, CANCELLED, 2)


def test_a_new_time_counts_instead_of_the_old() -> None:
    delays = waiting_for({1: NOW + SECOND, 2: NOW + SECOND, 3: NOW + HOUR})

    assert delays.reschedule(1, NOW + 2 * HOUR, now_ns=NOW)
    assert delays.reschedule(3, NOW + SECOND, now_ns=NOW)
    assert not delays.reschedule(4, NOW + SECOND, now_ns=NOW)

    assert list(delays.fire(NOW + HOUR).offsets) == [2, 3]
    assert not delays.reschedule(2, NOW + 3 * HOUR, now_ns=NOW)
    assert delays.find(1) == DelayEntry(1, NOW + 2 * HOUR, PENDING, 2)
    assert list(delays.fire(NOW + 2 * HOUR).offsets) == [1]


@pytest.mark.parametrize("due_ns", [NOW + SECOND + 7, NOW + SECOND + 6, NOW + 1, NOW, NOW - 1, 0, -1, -(2**70)])
def test_a_new_time_in_the_past_fires_next(due_ns: int) -> None:
    now_ns = NOW + SECOND + 7
    delays = waiting_for({1: NOW + HOUR})

    assert delays.reschedule(1, due_ns, now_ns=now_ns)

    assert delays.next_ns is not None
    assert delays.next_ns <= now_ns
    assert list(delays.fire(now_ns).offsets) == [1]


def test_a_time_that_never_comes_is_the_last_there_is() -> None:
    delays = waiting_for({1: NOW + HOUR})

    assert delays.reschedule(1, 2**80, now_ns=NOW)

    assert delays.due_ns(1) == 2**63 - 1
    assert not delays.fire(2**63 - 1 - TICK_NS).offsets


def test_what_left_the_log_is_expired() -> None:
    delays = waiting_for(dict.fromkeys(range(10, 20), NOW + HOUR))

    assert list(delays.drop(13)) == [10, 11, 12]
    assert not delays.drop(13)
    assert delays.find(11) == DelayEntry(11, NOW + HOUR, EXPIRED, 2)
    assert list(delays.fire(NOW + HOUR).offsets) == list(range(13, 20))
    assert delays.counts == DelayCounts(scheduled=10, delivered=7, cancelled=0, expired=3, pending=0)


def test_what_is_shown_again_counts_once() -> None:
    delays = waiting_for(dict.fromkeys(range(10), NOW + HOUR))
    delays.cancel(1)
    delays.reschedule(2, NOW + 2 * HOUR, now_ns=NOW)

    again = delays.schedule(entries(dict.fromkeys(range(12), NOW + HOUR)), now_ns=NOW)

    assert list(again) == [0, *range(2, 12)]
    assert delays.counts == DelayCounts(scheduled=12, delivered=0, cancelled=1, expired=0, pending=11)
    assert list(delays.fire(NOW + HOUR).offsets) == [0, *range(3, 12)]
    assert list(delays.fire(NOW + 2 * HOUR).offsets) == [2]


def test_pages_are_in_the_order_of_time() -> None:
    dues = {offset: NOW + (offset * 7919 % 1000 + 1) * 37 * SECOND for offset in range(3_000)}
    delays = waiting_for(dues)
    delays.reschedule(5, NOW - 5, now_ns=NOW)
    dues[5] = NOW - 5
    in_order = sorted(dues, key=lambda offset: (dues[offset], offset))

    for skip, limit in [(0, 100), (1, 1), (0, 0), (99, 1_000), (2_990, 100), (3_000, 5), (10_000, 1), (0, 5_000)]:
        page = delays.page(skip=skip, limit=limit)
        assert [one.offset for one in page] == in_order[skip : skip + limit]
        assert all(one == delays.find(one.offset) for one in page)


def test_pages_by_state() -> None:
    delays = waiting_for({1: NOW + 3 * SECOND, 2: NOW + 2 * SECOND, 3: NOW + SECOND, 4: NOW + HOUR, 5: NOW + HOUR})
    delays.cancel(4)
    delays.drop(2)
    delays.fire(NOW + 10 * SECOND)

    assert [one.offset for one in delays.page(skip=0, limit=9, state="delivered")] == [3, 2]
    assert [one.offset for one in delays.page(skip=1, limit=9, state="delivered")] == [2]
    assert [one.offset for one in delays.page(skip=0, limit=9, state="cancelled")] == [4]
    assert [one.offset for one in delays.page(skip=0, limit=9, state="expired")] == [1]
    assert [one.offset for one in delays.page(skip=0, limit=9)] == [5]
    assert delays.page(skip=0, limit=9, state="unheard of") == []


def test_they_are_found_by_the_checksum_of_their_key() -> None:
    delays = PartitionDelays(now_ns=NOW)
    for offset in range(100):
        delays.schedule(entries({offset: NOW + HOUR}, key_crc=offset % 3 * 0x01010101), now_ns=NOW)
    delays.cancel(1)

    assert list(delays.candidates(0x01010101)) == list(range(4, 100, 3))
    assert list(delays.candidates(0)) == list(range(0, 100, 3))
    assert not delays.candidates(0x01010102)
    delays.fire(NOW + HOUR)
    assert not delays.candidates(0x01010101)


def test_the_last_ten_thousand_are_remembered() -> None:
    count = SETTLED_MAX + 5_000
    delays = waiting_for(dict.fromkeys(range(count), NOW + HOUR))
    delays.cancel(count - 1)

    assert len(delays.fire(NOW + HOUR).offsets) == count - 1
    assert delays.find(4_998) is None
    assert delays.find(4_999) == DelayEntry(4_999, NOW + HOUR, DELIVERED, 2)
    assert delays.find(count - 1) is None  # it was settled before all the others
    assert len(delays.page(skip=0, limit=10**6, state="delivered")) == SETTLED_MAX
    assert delays.counts.delivered == count - 1


def test_a_restart_goes_on_where_it_was() -> None:
    delays = waiting_for({offset: NOW + offset * HOUR for offset in range(1, 100)})
    delays.cancel(5)
    delays.fire(NOW + 2 * HOUR)
    delays.reschedule(7, NOW + 3 * HOUR, now_ns=NOW)
    delays.drop(4)
    raw = delays.snapshot(100)
    assert len(raw) <= delays.snapshot_bytes

    again = PartitionDelays(now_ns=NOW + 2 * HOUR)
    assert again.restore(raw, next_offset=100) == Restored(100, True)

    assert again.waiting == delays.waiting
    assert again.counts == delays.counts
    for offset in range(100):
        assert again.find(offset) == delays.find(offset)
    assert list(again.fire(NOW + 6 * HOUR).offsets) == [4, 6, 7]


def test_what_came_due_meanwhile_fires_once() -> None:
    raw = waiting_for({1: NOW + HOUR, 2: NOW + 50 * HOUR}).snapshot(3)

    delays = restored(raw, now_ns=NOW + 24 * HOUR)

    assert delays.next_ns is not None
    assert delays.next_ns <= NOW + 24 * HOUR
    assert delays.fire(NOW + 24 * HOUR) == Fired(BitMap64([1]), NOW + HOUR)
    assert not delays.fire(NOW + 25 * HOUR).offsets


def test_changes_bring_the_index_up_to_date() -> None:
    delays = PartitionDelays(now_ns=NOW)
    raw = delays.snapshot(0)
    delays.schedule(entries(dict.fromkeys(range(2 * BLOCK_ENTRIES), NOW + HOUR)), now_ns=NOW)
    raw += delays.take_changes(2 * BLOCK_ENTRIES)
    delays.cancel_many(BitMap64(range(BLOCK_ENTRIES)))
    delays.reschedule(BLOCK_ENTRIES, NOW + 3 * HOUR, now_ns=NOW)
    delays.drop(BLOCK_ENTRIES)
    delays.fire(NOW + HOUR)
    raw += delays.take_changes(3 * BLOCK_ENTRIES)
    nothing = delays.take_changes(3 * BLOCK_ENTRIES + 1)
    assert len(nothing) == 32

    again = PartitionDelays(now_ns=NOW)
    assert again.restore(raw + nothing, next_offset=10**9) == Restored(3 * BLOCK_ENTRIES + 1, True)
    assert list(again.waiting) == [BLOCK_ENTRIES]
    assert again.due_ns(BLOCK_ENTRIES) == NOW + 3 * HOUR
    assert [again.find(offset) for offset in (0, BLOCK_ENTRIES + 1)] == [
        delays.find(offset) for offset in (0, BLOCK_ENTRIES + 1)
    ]


def test_what_was_settled_before_its_changes_were_taken_is_only_known_as_that() -> None:
    delays = PartitionDelays(now_ns=NOW)
    raw = delays.snapshot(0)
    delays.schedule(entries(dict.fromkeys(range(4), NOW + SECOND)), now_ns=NOW)
    delays.cancel(0)
    delays.cancel_many(BitMap64([1]))
    delays.fire(NOW + SECOND)

    again = restored(raw + delays.take_changes(4))

    assert not again.waiting
    assert [again.find(offset) for offset in range(4)] == [delays.find(offset) for offset in range(4)]


def test_a_time_that_was_changed_and_a_message_that_waits_again_are_in_the_index_as_they_are_last() -> None:
    delays = waiting_for({1: NOW + HOUR, 2: NOW + HOUR})
    raw = delays.snapshot(3)
    delays.cancel(1)
    raw += delays.take_changes(3)
    other = waiting_for({1: NOW + 5 * HOUR})
    raw += other.take_changes(3)

    again = restored(raw)

    assert list(again.waiting) == [1, 2]
    assert again.find(1) == DelayEntry(1, NOW + 5 * HOUR, PENDING, 2)
    assert again.counts.cancelled == 0


def test_an_index_that_is_ahead_of_the_log_is_taken_as_far_as_the_log_goes() -> None:
    dues = dict.fromkeys(range(10), NOW + HOUR)
    delays = waiting_for(dues)
    delays.cancel(8)

    again = PartitionDelays(now_ns=NOW)
    assert again.restore(delays.snapshot(10), next_offset=6) == Restored(6, False)

    assert list(again.waiting) == [0, 1, 2, 3, 4, 5]
    assert again.find(8) is None
    fresh = again.schedule(entries({8: NOW + 2 * HOUR}), now_ns=NOW)  # another record has that offset now
    assert list(fresh) == [8]


def test_an_index_with_entries_that_the_log_does_not_have_is_not_whole() -> None:
    raw = waiting_for({1: NOW + HOUR, 7: NOW + HOUR}).snapshot(5)

    assert PartitionDelays(now_ns=NOW).restore(raw, next_offset=6) == Restored(5, False)
    assert PartitionDelays(now_ns=NOW).restore(raw, next_offset=8) == Restored(5, True)


def test_an_index_that_covers_more_than_the_log_has_is_not_whole() -> None:
    assert PartitionDelays(now_ns=NOW).restore(waiting_for({}).snapshot(10), next_offset=6) == Restored(6, False)


def test_a_damaged_index_is_filled_up_from_the_log() -> None:
    dues = {offset: NOW + HOUR + offset for offset in range(3 * BLOCK_ENTRIES)}
    delays = waiting_for(dues)
    raw = bytearray(delays.snapshot(3 * BLOCK_ENTRIES))
    raw[HEADER_BYTES + 32 * (BLOCK_ENTRIES + 100)] ^= 1

    again = PartitionDelays(now_ns=NOW)
    assert again.restore(bytes(raw), next_offset=10**9) == Restored(BLOCK_ENTRIES, False)
    assert len(again.waiting) == 2 * BLOCK_ENTRIES
    again.apply(BLOCK_ENTRIES + 1, state=CANCELLED)
    again.schedule(entries({offset: due for offset, due in dues.items() if offset >= BLOCK_ENTRIES}), now_ns=NOW)

    assert list(again.waiting) == [offset for offset in dues if offset != BLOCK_ENTRIES + 1]
    assert again.page(skip=0, limit=10**6) == [DelayEntry(one, dues[one], PENDING, 2) for one in again.waiting]


def test_what_a_damaged_index_still_knows_is_not_undone_by_the_log() -> None:
    delays = PartitionDelays(now_ns=NOW)
    raw = delays.snapshot(0)
    dues = dict.fromkeys(range(5), NOW + HOUR)
    delays.schedule(entries(dues), now_ns=NOW)
    delays.cancel(3)
    delays.reschedule(4, NOW + 2 * HOUR, now_ns=NOW)

    again = restored(raw + b"a hole" + delays.take_changes(5))
    again.schedule(entries(dues), now_ns=NOW)

    assert list(again.fire(NOW + HOUR).offsets) == [0, 1, 2]
    assert list(again.fire(NOW + 2 * HOUR).offsets) == [4]


@pytest.mark.parametrize("raw", [b"", b"garbage" * 10, bytes(4096)])
def test_a_missing_or_foreign_index_is_none(raw: bytes) -> None:
    assert PartitionDelays(now_ns=NOW).restore(raw, next_offset=6) == Restored(0, False)


def test_what_the_ledger_says_holds_before_and_after_the_log_has_shown_it() -> None:
    for is_before in (True, False):
        delays = PartitionDelays(now_ns=NOW)
        if not is_before:
            delays.schedule(entries(dict.fromkeys(range(6), NOW + HOUR)), now_ns=NOW)
        for _ in range(2):
            delays.apply(1, state=CANCELLED)
            delays.apply(1, due_ns=NOW + 2 * HOUR)
            delays.apply(2, due_ns=NOW + 2 * HOUR)
            delays.apply(3, due_ns=NOW + 2 * HOUR)
            delays.apply(3, state=CANCELLED)
            delays.apply(4, due_ns=NOW + 1)
            delays.apply(5, state=EXPIRED)
        if is_before:
            delays.schedule(entries(dict.fromkeys(range(6), NOW + HOUR)), now_ns=NOW)

        assert list(delays.fire(NOW + SECOND).offsets) == [4]
        assert list(delays.fire(NOW + HOUR).offsets) == [0]
        assert list(delays.fire(NOW + 2 * HOUR).offsets) == [2]
        assert delays.counts == DelayCounts(scheduled=6, delivered=3, cancelled=2, expired=1, pending=0)
        assert delays.find(1) == DelayEntry(1, NOW + HOUR, CANCELLED, 2)


def test_what_the_ledger_says_of_messages_that_are_settled_changes_nothing() -> None:
    delays = waiting_for({1: NOW + SECOND, 2: NOW + SECOND})
    delays.fire(NOW + SECOND)

    delays.apply(1, state=CANCELLED)
    delays.apply(2, due_ns=NOW + HOUR)
    delays.schedule(entries({1: NOW + HOUR, 2: NOW + HOUR}), now_ns=NOW)

    assert not delays.waiting
    assert delays.find(1) == DelayEntry(1, NOW + SECOND, DELIVERED, 2)


def test_what_the_ledger_says_of_messages_that_the_log_has_shown_not_to_wait_is_forgotten() -> None:
    delays = waiting_for({1: NOW, 5: NOW + HOUR})

    delays.apply(1, state=CANCELLED)
    delays.apply(2, due_ns=NOW + HOUR)

    assert list(delays.schedule(entries({1: NOW + HOUR, 2: NOW}), now_ns=NOW)) == [1]


def test_the_sum_of_delays_follows_a_new_time() -> None:
    delays = waiting_for({1: NOW + HOUR, 2: NOW + HOUR})
    delays.reschedule(1, NOW + 3 * HOUR, now_ns=NOW)

    assert (delays.total_delay_ns, delays.delay_count) == (4 * HOUR, 2)


def test_what_the_ledger_says_of_messages_that_are_gone_is_forgotten() -> None:
    delays = PartitionDelays(now_ns=NOW)
    delays.apply(1, state=CANCELLED)
    delays.apply(2, state=CANCELLED)
    delays.drop(2)
    delays.schedule(entries({1: NOW + HOUR, 2: NOW + HOUR, 3: NOW + HOUR}), now_ns=NOW)

    assert list(delays.waiting) == [1, 3]


@dataclass
class World:
    """A log, a ledger and an index file, and what must follow from them: a dict of what became of each message."""

    now_ns: int = NOW
    log: dict[int, int] = field(default_factory=dict)
    log_start: int = 0
    ledger: list[tuple[int, DelayState | int]] = field(default_factory=list)
    states: dict[int, DelayState] = field(default_factory=dict)
    dues: dict[int, int] = field(default_factory=dict)
    file: bytes = b""
    delays: PartitionDelays = field(default_factory=lambda: PartitionDelays(now_ns=NOW))

    def pending(self) -> set[int]:
        return {offset for offset, state in self.states.items() if state is PENDING}

    def publish(self, delays_ns: list[int]) -> None:
        first = len(self.log)
        new = {first + place: self.now_ns + delay_ns for place, delay_ns in enumerate(delays_ns)}
        self.log |= new
        waiting = {offset for offset, due_ns in new.items() if due_ns > self.now_ns}
        assert set(self.delays.schedule(entries(new), now_ns=self.now_ns)) == waiting
        self.dues |= new
        self.states |= {offset: PENDING if offset in waiting else DELIVERED for offset in new}

    def cancel(self, offsets: set[int]) -> None:
        gone = offsets & self.pending()
        if len(offsets) == 1:
            assert self.delays.cancel(min(offsets)) == bool(gone)
        else:
            assert set(self.delays.cancel_many(BitMap64(offsets))) == gone
        self.states |= dict.fromkeys(gone, CANCELLED)
        self.ledger += [(offset, CANCELLED) for offset in gone]

    def reschedule(self, offset: int, due_ns: int) -> None:
        is_pending = offset in self.pending()
        assert self.delays.reschedule(offset, due_ns, now_ns=self.now_ns) == is_pending
        if is_pending:
            if due_ns <= self.now_ns:
                due_ns = min(due_ns, self.now_ns // TICK_NS * TICK_NS)
            self.dues[offset] = due_ns
            self.ledger.append((offset, due_ns))

    def drop(self, below: int) -> None:
        self.log_start = max(self.log_start, min(below, len(self.log)))
        gone = {offset for offset in self.pending() if offset < self.log_start}
        assert set(self.delays.drop(self.log_start)) == gone
        self.states |= dict.fromkeys(gone, EXPIRED)

    def fire(self, now_ns: int) -> None:
        self.now_ns = now_ns
        due = {offset for offset in self.pending() if -(-self.dues[offset] // TICK_NS) <= now_ns // TICK_NS}
        fired, oldest_ns = self.delays.fire(now_ns)
        assert set(fired) == due
        assert oldest_ns == min((self.dues[offset] for offset in due), default=now_ns)
        self.states |= dict.fromkeys(due, DELIVERED)

    def restart(self, is_log_first: bool) -> None:
        self.delays = PartitionDelays(now_ns=self.now_ns)
        covered, _ = self.delays.restore(self.file, next_offset=len(self.log))
        tail = {offset: due_ns for offset, due_ns in self.log.items() if offset >= max(covered, self.log_start)}
        for step in (True, False):
            if step == is_log_first:
                self.delays.schedule(entries(tail), now_ns=self.now_ns)
            else:
                for offset, change in self.ledger + self.ledger:
                    if isinstance(change, DelayState):
                        self.delays.apply(offset, state=change)
                    else:
                        self.delays.apply(offset, due_ns=change)
        self.delays.drop(self.log_start)

    def crash(self, is_log_first: bool) -> None:
        """Restart from an old or broken file: what had fired may wait again, what is due already need not wait."""
        self.restart(is_log_first)
        waiting = set(self.delays.waiting)
        for offset, state in self.states.items():
            if state is DELIVERED and offset in waiting:
                self.states[offset] = PENDING
            elif state is PENDING and offset not in waiting:
                assert self.dues[offset] <= self.now_ns
                self.states[offset] = DELIVERED

    def check(self) -> None:
        pending = self.pending()
        assert set(self.delays.waiting) == pending
        in_order = sorted(pending, key=lambda offset: (self.dues[offset], offset))
        assert [(one.offset, one.due_ns) for one in self.delays.page(skip=0, limit=999)] == [
            (offset, self.dues[offset]) for offset in in_order
        ]
        assert self.delays.counts.pending == len(pending)
        assert self.delays.counts.scheduled == sum(self.delays.counts[1:])


delay = st.one_of(
    st.integers(-3, 5),
    st.integers(1, 500).map(lambda ticks: ticks * TICK_NS),
    st.integers(1, 10**7).map(lambda ticks: ticks * TICK_NS + 3),
    st.sampled_from([HOUR, 24 * HOUR, 3_650 * 24 * HOUR]),
)
number = st.integers(0, 40)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(delay, min_size=1, max_size=6)),
        st.tuples(st.just("publish"), st.lists(delay, min_size=1, max_size=6)),
        st.tuples(st.just("cancel"), st.sets(number, min_size=1, max_size=4)),
        st.tuples(st.just("reschedule"), st.tuples(number, delay)),
        st.tuples(st.just("drop"), number),
        st.tuples(st.just("fire"), delay),
        st.tuples(st.just("fire next"), st.none()),
        st.tuples(st.just("clock back"), delay),
        st.tuples(st.just("save"), st.none()),
        st.tuples(st.just("rewrite"), st.none()),
        st.tuples(st.just("restart"), st.booleans()),
        st.tuples(st.just("crash"), st.booleans()),
        st.tuples(st.just("cut"), st.integers(0, 2_000)),
        st.tuples(st.just("damage"), st.integers(0, 2_000)),
    ),
    max_size=50,
)


@given(steps)
def test_it_does_what_a_dict_of_messages_does(steps: list[tuple[str, object]]) -> None:
    world = World()
    world.file = world.delays.snapshot(0)
    for step in steps:
        next_offset = len(world.log)
        match step:
            case "publish", list(delays_ns):
                world.publish(delays_ns)
            case "cancel", set(offsets):
                world.cancel(offsets)
            case "reschedule", (int(offset), int(delay_ns)):
                world.reschedule(offset, world.now_ns + delay_ns)
            case "drop", int(below):
                world.drop(below)
            case "fire", int(delay_ns):
                world.fire(world.now_ns + max(0, delay_ns))
            case "fire next", _:
                world.fire(max(world.now_ns, world.delays.next_ns or 0))
            case "clock back", int(delay_ns):
                world.fire(world.now_ns - max(0, delay_ns))
            case "save", _:
                world.file += world.delays.take_changes(next_offset)
            case "rewrite", _:
                world.file = world.delays.snapshot(next_offset)
            case "restart", bool(is_log_first):
                world.file += world.delays.take_changes(next_offset)
                states = dict(world.states)
                world.crash(is_log_first)
                assert world.states == states
                world.file = world.delays.snapshot(next_offset)
            case "crash", bool(is_log_first):
                world.crash(is_log_first)
                world.file = world.delays.snapshot(next_offset)
            case "cut", int(size):
                world.file = world.file[: max(0, len(world.file) - size)]
                world.crash(True)
                world.file = world.delays.snapshot(next_offset)
            case "damage", int(position):
                damaged = bytearray(world.file)
                damaged[position % len(damaged)] ^= 0x10
                world.file = bytes(damaged)
                world.crash(False)
                world.file = world.delays.snapshot(next_offset)
        world.check()

    world.fire(world.now_ns + 40_000 * 24 * HOUR)
    assert not world.delays.waiting


@pytest.mark.parametrize("by", [-HOUR, HOUR, 7, -7 * SECOND])
def test_messages_that_are_moved_with_the_clock_fire_as_if_it_had_not_been_set(by: int) -> None:
    delays = waiting_for({1: NOW + SECOND, 2: NOW + 5 * SECOND, 3: NOW + HOUR})
    delays.apply(9, due_ns=NOW + 2 * SECOND)  # the log is yet to show it

    delays.shift(by, now_ns=NOW + by)
    delays.schedule(entries({9: NOW + HOUR}), now_ns=NOW + by)

    assert list(delays.fire(NOW + by + SECOND - TICK_NS).offsets) == []
    assert list(delays.fire(NOW + by + 2 * SECOND + TICK_NS).offsets) == [1, 9]
    assert delays.due_ns(3) == NOW + HOUR + by
    again = restored(delays.snapshot(10), now_ns=NOW + by)
    assert list(again.fire(NOW + by + 2 * HOUR).offsets) == [2, 3]
