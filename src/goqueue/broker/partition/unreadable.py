"""Facts of a partition that cannot be decoded: damaged, or written by a later version.

Such a fact is skipped: it stays stored, the other facts count, and the broker starts. It is reported when it is first
read, and the health of the broker names its partition while the broker runs.
"""

from goqueue import events

REMEMBERED_MAX = 1_000
"""The most keys that are remembered; beyond that a fact counts each time it is read."""
_KEY_BYTES_SHOWN = 64
_REASON_SHOWN = 200


class UnreadableFacts:
    """The facts of one partition that cannot be decoded. `directory` is that of its log."""

    def __init__(self, directory: str, observe: events.Observer = events.ignore) -> None:
        self._directory = directory
        self._observe = observe
        self._keys: frozenset[bytes] = frozenset()  # all partitions share the empty one
        self.count = 0

    def __bool__(self) -> bool:
        return self.count > 0

    def pass_over(self, key: bytes, error: object) -> None:
        """Note and report the fact of that key."""
        if key in self._keys:
            return
        if len(self._keys) < REMEMBERED_MAX:
            self._keys |= {key}
        self.count += 1
        reason = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(error)
        shown = repr(key[:_KEY_BYTES_SHOWN])
        self._observe(events.FactUnreadable(log=self._directory, key=shown, reason=reason[:_REASON_SHOWN]))
