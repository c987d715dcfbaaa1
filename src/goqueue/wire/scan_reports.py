"""What a broker tells those who read ranges of a partition in bulk. Arrays on the wire, as in `reports.py`."""

import msgspec


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """Records from an offset to where the next piece begins, and about how many bytes they take."""

    first_offset: int
    size_bytes: int


class DueTime(msgspec.Struct, array_like=True, frozen=True):
    """When a delayed message that was rescheduled is due."""

    offset: int
    due_ns: int


class HiddenRange(msgspec.Struct, array_like=True, frozen=True):
    """Offsets [first_offset, end_offset) that a reader does not see."""

    first_offset: int
    end_offset: int
