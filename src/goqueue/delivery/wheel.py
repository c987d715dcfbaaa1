"""A hierarchical timer wheel whose slots are sets of offsets.

Time is cut into ticks of 10 ms. What is due in the middle of a tick belongs to the tick that begins next, so that it
is never early and less than one tick late. Five levels hold what is to come, each in coarser windows:

    level          0        1         2         3         far
    a slot spans   10 ms    640 ms    41 s      44 min    47 h
    slots          256      64        64        64        as many as it takes

Level 0 holds the present window of level 1 and the three that follow; levels 1 to 3 hold the present window of the
level above. An offset stands in the finest level that holds its tick, so its slot follows from its tick and the present
tick alone. When a window comes within the reach of a finer level, its slot is spread there (it cascades). For most that
is two seconds before the first of it is due, and in small parts: nothing waits for a cascade. Windows that were
jumped over are due as a whole. When the clock is set back, slots are gathered into those of the coarser windows in
which they have their place then. Either way a jump costs one look at each slot, however long it is.

The wheel knows offsets, not their times: its owner supplies them again for a slot that cascades.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from pyroaring import BitMap64

TICK_NS = 10_000_000
SHIFTS = (0, 6, 12, 18, 24)
"""How many bits of a tick a window of each level leaves out."""
_AHEAD = 4
"""How many windows of level 1 are spread over level 0."""
_FAR = len(SHIFTS) - 1

DuesOf: TypeAlias = Callable[[BitMap64], "array[int]"]
"""When each of these offsets is due, in the order of the offsets."""


class Wheel:
    """All offsets that wait, by the time at which they are due."""

    __slots__ = ("_dues_of", "_ends", "_overdue", "_slots", "_tick", "tick_ns")

    def __init__(self, *, start_ns: int, dues_of: DuesOf, tick_ns: int = TICK_NS) -> None:
        self.tick_ns = tick_ns
        self._dues_of = dues_of
        self._overdue = BitMap64()  # of ticks up to the present one: for the next advance
        self._slots: list[dict[int, BitMap64]] = [{} for _ in SHIFTS]  # per level, by window
        self._move_to(start_ns // tick_ns)

    def __len__(self) -> int:
        return sum(map(len, self.in_order()))

    @property
    def tick(self) -> int:
        """The tick up to which everything has fired."""
        return self._tick

    @property
    def next_ns(self) -> int | None:
        """When to advance next: something is due then, or a slot cascades. None if nothing waits."""
        if self._overdue:
            return self._tick * self.tick_ns
        for shift, slots in zip(SHIFTS, self._slots, strict=True):
            if slots:
                return (min(slots) << shift) * self.tick_ns
        return None

    def in_order(self) -> Iterator[BitMap64]:
        """All that wait, in sets of which each is due before the next. They are not the caller's to change."""
        if self._overdue:
            yield self._overdue
        for slots in self._slots:
            for window in sorted(slots):
                yield slots[window]

    def add(self, offset: int, due_ns: int) -> None:
        """Let the offset, which does not wait yet, fire at that time; at the next advance if that is past."""
        level, window = self._place(-(-due_ns // self.tick_ns))
        if level < 0:
            self._overdue.add(offset)
        elif slot := self._slots[level].get(window):
            slot.add(offset)
        else:
            self._slots[level][window] = BitMap64((offset,))

    def add_many(self, offsets: "array[int]", dues_ns: "array[int]") -> None:
        """The same for many, of which the times stand in the same order."""
        for level, window, group in self._groups(offsets, dues_ns):
            if level < 0:
                self._overdue |= group
            elif slot := self._slots[level].get(window):
                slot |= group
            else:
                self._slots[level][window] = group

    def remove(self, offset: int, due_ns: int) -> bool:
        """Whether the offset waited for that time; it does no longer."""
        level, window = self._place(-(-due_ns // self.tick_ns))
        slot = self._overdue if level < 0 else self._slots[level].get(window)
        if slot is None or offset not in slot:
            return False
        slot.remove(offset)
        if level >= 0 and not slot:
            del self._slots[level][window]
        return True

    def remove_many(self, offsets: "array[int]", dues_ns: "array[int]") -> None:
        """Let none of these fire, which wait for these times."""
        for level, window, group in self._groups(offsets, dues_ns):
            if level < 0:
                self._overdue -= group
            elif slot := self._slots[level].get(window):
                slot -= group
                if not slot:
                    del self._slots[level][window]

    def advance(self, now_ns: int) -> BitMap64:
        """Everything that is due, each once; none of it waits from then on."""
        tick = now_ns // self.tick_ns
        if tick < self._tick:
            self._go_back(tick)
        fired, self._overdue = self._overdue, BitMap64()
        if tick > self._tick:
            self._go_forward(tick, fired)
        return fired

    def _go_forward(self, tick: int, fired: BitMap64) -> None:
        """Move on to the tick and add to `fired` what is due by then."""
        ends_before = self._ends
        self._move_to(tick)
        cascading: list[BitMap64] = []
        for level, (shift, slots) in enumerate(zip(SHIFTS, self._slots, strict=True)):
            due_before = tick >> shift if level else tick + 1
            leaving_before = self._ends[level - 1] >> shift if level else due_before
            for window in [window for window in slots if window < leaving_before]:
                if window < due_before:
                    fired |= slots.pop(window)
                else:
                    cascading.append(slots.pop(window))
            if level < _FAR and self._ends[level] == ends_before[level]:
                break  # no window of a coarser level has come within reach
        for slot in cascading:
            self.add_many(slot.to_array(), self._dues_of(slot))
        fired |= self._overdue
        self._overdue.clear()

    def _go_back(self, tick: int) -> None:
        """Move to an earlier tick, so that what is due between the two waits again."""
        slots_before, self._slots = self._slots, [{} for _ in SHIFTS]
        self._move_to(tick)
        for shift, slots in zip(SHIFTS, slots_before, strict=True):
            for window, slot in slots.items():
                level, wider = self._place(window << shift)
                if gathered := self._slots[level].get(wider):
                    gathered |= slot
                else:
                    self._slots[level][wider] = slot
        if overdue := self._overdue:
            self._overdue = BitMap64()
            self.add_many(overdue.to_array(), self._dues_of(overdue))

    def _move_to(self, tick: int) -> None:
        self._tick = tick
        _, shift_1, *coarser = SHIFTS
        ends = [((tick >> shift) + 1) << shift for shift in coarser]
        self._ends = (min(((tick >> shift_1) + _AHEAD) << shift_1, ends[0]), *ends)  # the first tick after each level

    def _place(self, tick: int) -> tuple[int, int]:
        """The level and the window in which a tick has its slot; level -1 if it is past."""
        if tick <= self._tick:
            return -1, 0
        end_0, end_1, end_2, end_3 = self._ends
        level = 0 if tick < end_0 else 1 if tick < end_1 else 2 if tick < end_2 else 3 if tick < end_3 else _FAR
        return level, tick >> SHIFTS[level]

    def _groups(self, offsets: "array[int]", dues_ns: "array[int]") -> Iterable[tuple[int, int, BitMap64]]:
        """The offsets by the slots in which they have their place."""
        if not offsets:
            return []
        tick_ns = self.tick_ns
        first = self._place(-(-min(dues_ns) // tick_ns))
        if first == self._place(-(-max(dues_ns) // tick_ns)):
            return [(*first, BitMap64(offsets))]
        groups: defaultdict[int, list[int]] = defaultdict(list)  # by window and, in the last 3 bits, level
        present = self._tick
        end_0, end_1, end_2, end_3 = self._ends
        _, shift_1, shift_2, shift_3, shift_4 = SHIFTS
        for offset, due_ns in zip(offsets, dues_ns, strict=True):
            tick = -(-due_ns // tick_ns)
            if tick < end_0:
                groups[tick << 3 if tick > present else -1].append(offset)
            elif tick < end_1:
                groups[tick >> shift_1 << 3 | 1].append(offset)
            elif tick < end_2:
                groups[tick >> shift_2 << 3 | 2].append(offset)
            elif tick < end_3:
                groups[tick >> shift_3 << 3 | 3].append(offset)
            else:
                groups[tick >> shift_4 << 3 | 4].append(offset)
        return [(key & 7 if key >= 0 else -1, key >> 3, BitMap64(group)) for key, group in groups.items()]
