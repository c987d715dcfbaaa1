"""Facts of a partition that cannot be understood: garbage, or written by a later version.

A fact that is passed over costs what it said, and nothing else: it stays where it is, the facts around it count, and
the broker starts. It is reported when it is first read, and the health of the broker names its partition for as long as
the broker runs.
"""

from goqueue import events

REMEMBERED_MAX = 1_000
"""So many keys are told apart; beyond that every fact counts, also one that is met again."""
_KEY_BYTES_SHOWN = 64
_REASON_SHOWN = 200


class UnreadableFacts:
    """Those of one partition. `directory` is that of its log."""

    def __init__(self, directory: str, observe: events.Observer = events.ignore) -> None:
        self._directory = directory
        self._observe = observe
        self._keys: frozenset[bytes] = frozenset()  # all partitions share the empty one
        self.count = 0

    def __bool__(self) -> bool:
        return self.count > 0

    def pass_over(self, key: bytes, error: object) -> None:
        """The fact under that key counts for nothing."""
        if key in self._keys:
            return
        if len(self._keys) < REMEMBERED_MAX:
            self._keys |= {key}
        self.count += 1
        reason = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(error)
        shown = repr(key[:_KEY_BYTES_SHOWN])
        self._observe(events.FactUnreadable(log=self._directory, key=shown, reason=reason[:_REASON_SHOWN]))
