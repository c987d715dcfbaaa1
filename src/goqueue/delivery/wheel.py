"""A hierarchical timer wheel whose slots are sets of offsets.

Time is divided into ticks of 10 ms. An offset that is due within a tick belongs to the next tick, so it fires never
early and less than one tick late. Five levels hold the offsets, each in coarser windows:

    level          0        1         2         3         far
    a slot spans   10 ms    640 ms    41 s      44 min    47 h
    slots          256      64        64        64        unlimited

Level 0 spans the current window of level 1 and the three after it; levels 1 to 3 span the current window of the next
coarser level. An offset is in the finest level that spans its tick, so its slot is a function of its tick and the
current tick. When a finer level comes to span a window, the offsets of its slot move there (it cascades). For most
offsets that happens about two seconds before the first of the slot is due, and for small slots: no delivery waits for a
cascade. A forward jump of the clock fires skipped windows as a whole. A backward jump merges slots into the coarser
windows that span them then. A jump of any length visits each slot once.

The wheel stores offsets, not due times: its owner supplies the times of a slot that cascades.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from pyroaring import BitMap64

TICK_NS = 10_000_000
SHIFTS = (0, 6, 12, 18, 24)
"""By level, the bits of a tick that the number of its window does not have."""
_AHEAD = 4
"""The number of windows of level 1 that level 0 spans."""
_FAR = len(SHIFTS) - 1

DuesOf: TypeAlias = Callable[[BitMap64], "array[int]"]
"""The due times of these offsets, in the order of the offsets."""


class Wheel:
    """Offsets by due time. Each offset is in one slot, and fires once."""

    __slots__ = ("_dues_of", "_ends", "_overdue", "_slots", "_tick", "tick_ns")

    def __init__(self, *, start_ns: int, dues_of: DuesOf, tick_ns: int = TICK_NS) -> None:
        self.tick_ns = tick_ns
        self._dues_of = dues_of
        self._overdue = BitMap64()  # due at or before the current tick; fires at the next advance
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
        """The time of the next advance: an offset is due, or a slot cascades. None if the wheel is empty."""
        if self._overdue:
            return self._tick * self.tick_ns
        for shift, slots in zip(SHIFTS, self._slots, strict=True):
            if slots:
                return (min(slots) << shift) * self.tick_ns
        return None

    def in_order(self) -> Iterator[BitMap64]:
        """All offsets, in sets of ascending due times. Callers must not change the sets."""
        if self._overdue:
            yield self._overdue
        for slots in self._slots:
            for window in sorted(slots):
                yield slots[window]

    def add(self, offset: int, due_ns: int) -> None:
        """Add an offset, which is not in the wheel, with its due time; a past one fires at the next advance."""
        level, window = self._place(-(-due_ns // self.tick_ns))
        if level < 0:
            self._overdue.add(offset)
        elif slot := self._slots[level].get(window):
            slot.add(offset)
        else:
            self._slots[level][window] = BitMap64((offset,))

    def add_many(self, offsets: "array[int]", dues_ns: "array[int]") -> None:
        """Add many offsets; the due times are in the order of the offsets."""
        for level, window, group in self._groups(offsets, dues_ns):
            if level < 0:
                self._overdue |= group
            elif slot := self._slots[level].get(window):
                slot |= group
            else:
                self._slots[level][window] = group

    def remove(self, offset: int, due_ns: int) -> bool:
        """Remove an offset with that due time; returns whether it was in the wheel."""
        level, window = self._place(-(-due_ns // self.tick_ns))
        slot = self._overdue if level < 0 else self._slots[level].get(window)
        if slot is None or offset not in slot:
            return False
        slot.remove(offset)
        if level >= 0 and not slot:
            del self._slots[level][window]
        return True

    def remove_many(self, offsets: "array[int]", dues_ns: "array[int]") -> None:
        """Remove many offsets, which are in the wheel with these due times."""
        for level, window, group in self._groups(offsets, dues_ns):
            if level < 0:
                self._overdue -= group
            elif slot := self._slots[level].get(window):
                slot -= group
                if not slot:
                    del self._slots[level][window]

    def advance(self, now_ns: int) -> BitMap64:
        """Move to the time, and remove and return the due offsets."""
        tick = now_ns // self.tick_ns
        if tick < self._tick:
            self._go_back(tick)
        fired, self._overdue = self._overdue, BitMap64()
        if tick > self._tick:
            self._go_forward(tick, fired)
        return fired

    def _go_forward(self, tick: int, fired: BitMap64) -> None:
        """Move to a later tick, and add the offsets that are due by then to `fired`."""
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
                break  # the level spans the same windows as before, so no coarser slot cascades
        for slot in cascading:
            self.add_many(slot.to_array(), self._dues_of(slot))
        fired |= self._overdue  # of a cascading slot, the offsets that are due by now
        self._overdue.clear()

    def _go_back(self, tick: int) -> None:
        """Move to an earlier tick; overdue offsets that are due after it wait again."""
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
        # by level, the first tick after its span
        self._ends = (min(((tick >> shift_1) + _AHEAD) << shift_1, ends[0]), *ends)

    def _place(self, tick: int) -> tuple[int, int]:
        """The level and the window of the slot for a tick; level -1 if the tick is past."""
        if tick <= self._tick:
            return -1, 0
        end_0, end_1, end_2, end_3 = self._ends
        level = 0 if tick < end_0 else 1 if tick < end_1 else 2 if tick < end_2 else 3 if tick < end_3 else _FAR
        return level, tick >> SHIFTS[level]

    def _groups(self, offsets: "array[int]", dues_ns: "array[int]") -> Iterable[tuple[int, int, BitMap64]]:
        """The offsets by slot."""
        if not offsets:
            return []
        tick_ns = self.tick_ns
        # a batch with one delay, the usual case, goes to one slot without a Python statement per offset
        first = self._place(-(-min(dues_ns) // tick_ns))
        if first == self._place(-(-max(dues_ns) // tick_ns)):
            return [(*first, BitMap64(offsets))]
        groups: defaultdict[int, list[int]] = defaultdict(list)  # key: the window and, in the last 3 bits, the level
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
