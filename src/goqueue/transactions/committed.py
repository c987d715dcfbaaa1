"""Markers that were committed: texts of callers, each of which stands for something that is to happen once.

They are kept for seven days since they were last asked for, and no more than a hundred thousand of them: whoever
repeats a commit because it did not hear the answer does so sooner. Whoever goes on from one to the next says which one
it replaces, and leaves a single one behind.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from goqueue.errors import InvalidRequest
from goqueue.transactions import facts
from goqueue.transactions.limits import TransactionLimits


@dataclass(slots=True)
class _Committed:
    committed_at_ns: int
    used_at_ns: int
    saved_at_ns: int = 0  # the last use that is in a fact


class CommittedMarkers:
    """The markers, the one that was used least recently first."""

    def __init__(self, limits: TransactionLimits) -> None:
        self._limits = limits
        self._markers: OrderedDict[str, _Committed] = OrderedDict()

    def __len__(self) -> int:
        return len(self._markers)

    def __contains__(self, marker: str) -> bool:
        return marker in self._markers

    def add(self, marker: str, *, wall_ns: int) -> None:
        """It is committed."""
        self._markers[marker] = _Committed(wall_ns, wall_ns)

    def remove(self, marker: str) -> bool:
        """Forget it; whether it was there."""
        return self._markers.pop(marker, None) is not None

    def use(self, marker: str, *, wall_ns: int) -> bool:
        """It was asked for again; whether that is worth a fact."""
        known = self._markers[marker]
        known.used_at_ns = wall_ns
        self._markers.move_to_end(marker)
        return wall_ns - known.saved_at_ns >= self._limits.refresh_ns

    def forget_old(self, *, wall_ns: int, count_max: int) -> Iterator[str]:
        """Forget what was not used for too long, or is too many, but not so much that it takes long."""
        for _ in range(min(count_max, len(self._markers))):
            marker, oldest = next(iter(self._markers.items()))
            is_old = wall_ns - oldest.used_at_ns >= self._limits.marker_ns_max
            if not is_old and len(self._markers) <= self._limits.markers_max:
                return
            del self._markers[marker]
            yield marker

    def fact(self, marker: str) -> bytes | None:
        """The marker as it is stored; None once it is forgotten."""
        known = self._markers.get(marker)
        if not known:
            return None
        known.saved_at_ns = known.used_at_ns
        return facts.encode(facts.SavedMarker(facts.VERSION, known.committed_at_ns, known.used_at_ns))

    def restore(self, saved: Iterable[tuple[str, facts.SavedMarker]]) -> None:
        """Have these, as they were stored."""
        for marker, one in sorted(saved, key=lambda pair: pair[1].used_at_ns):
            self._markers[marker] = _Committed(one.committed_at_ns, one.used_at_ns, one.used_at_ns)

    def validate(self, marker: str) -> None:
        """Raise `InvalidRequest` unless a marker may be called that."""
        if not marker:
            raise InvalidRequest("marker is empty", path="marker")
        if len(marker) > self._limits.marker_characters_max:
            rule = f"marker must be at most {self._limits.marker_characters_max} characters"
            raise InvalidRequest(rule, path="marker")
        try:
            marker.encode()
        except UnicodeEncodeError:
            raise InvalidRequest("marker is no valid text", path="marker") from None


def marker_key(marker: str) -> bytes:
    """Under which it is stored."""
    return facts.MARKER_KEY + marker.encode()
