"""What a broker answers to clients that read whole ranges of a partition.

They travel as `WireStruct` does, by the names of their fields. They are frozen, because several plans share them, and a
frozen struct cannot have a base that is not.
"""

from msgspec import Struct


class Piece(Struct, frozen=True):
    """Records from an offset to where the next piece begins, and about how many bytes they take."""

    first_offset: int
    size_bytes: int


class DueTime(Struct, frozen=True):
    """When a delayed message that was rescheduled is due."""

    offset: int
    due_ns: int


class HiddenRange(Struct, frozen=True):
    """Offsets [first_offset, end_offset) that a reader does not see."""

    first_offset: int
    end_offset: int
