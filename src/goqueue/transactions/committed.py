"""Commit markers: texts chosen by callers, each of which is committed at most once.

A marker is kept for seven days after its last use, and at most 100,000 are kept: a caller that repeats a commit because
it lost the answer does so sooner. A caller that commits one marker after the other (a streaming query with its batch
number) names the marker that the new one replaces, and so occupies a single entry.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from goqueue.errors import InvalidRequest
from goqueue.transactions import facts
from goqueue.transactions.decisions import Busy, Decision
from goqueue.transactions.limits import TransactionLimits


@dataclass(slots=True)
class _Committed:
    committed_at_ns: int
    used_at_ns: int
    saved_at_ns: int = 0  # the last use that is in a fact


class CommittedMarkers:
    """The markers, least recently used first, and those whose commit is under way."""

    def __init__(self, limits: TransactionLimits) -> None:
        self._limits = limits
        self._markers: OrderedDict[str, _Committed] = OrderedDict()
        self.committing: dict[str, Decision] = {}

    def __len__(self) -> int:
        return len(self._markers)

    def __contains__(self, marker: str) -> bool:
        return marker in self._markers

    def add(self, marker: str, *, wall_ns: int) -> None:
        """The commit of the marker is completed."""
        self.committing.pop(marker, None)
        self._markers[marker] = _Committed(wall_ns, wall_ns)

    def remove(self, marker: str) -> bool:
        """Forget the marker; false if it was not known."""
        return self._markers.pop(marker, None) is not None

    def use(self, marker: str, *, wall_ns: int) -> bool:
        """Note that the marker was named again; true if the stored time of its last use should be renewed."""
        known = self._markers[marker]
        known.used_at_ns = wall_ns
        self._markers.move_to_end(marker)
        return wall_ns - known.saved_at_ns >= self._limits.refresh_ns

    def forget_old(self, *, wall_ns: int, count_max: int) -> Iterator[str]:
        """Forget markers that are too old or too many, at most `count_max` of them."""
        for _ in range(min(count_max, len(self._markers))):
            marker, oldest = next(iter(self._markers.items()))
            is_old = wall_ns - oldest.used_at_ns >= self._limits.marker_ns_max
            if not is_old and len(self._markers) <= self._limits.markers_max:
                return
            del self._markers[marker]
            yield marker

    def fact(self, marker: str) -> bytes | None:
        """The encoded marker; None once it is forgotten."""
        known = self._markers.get(marker)
        if not known:
            return None
        known.saved_at_ns = known.used_at_ns
        return facts.encode(facts.SavedMarker(facts.VERSION, known.committed_at_ns, known.used_at_ns))

    def restore(self, saved: Iterable[tuple[str, facts.SavedMarker]]) -> None:
        """Fill the empty table."""
        for marker, one in sorted(saved, key=lambda pair: pair[1].used_at_ns):
            self._markers[marker] = _Committed(one.committed_at_ns, one.used_at_ns, one.used_at_ns)

    def check(self, marker: str) -> None:
        """Raise `InvalidRequest` if the text cannot be a marker, or `Busy` if its commit is under way."""
        if not marker:
            raise InvalidRequest("marker must not be empty", path="marker")
        if len(marker) > self._limits.marker_characters_max:
            rule = f"marker must be at most {self._limits.marker_characters_max} characters"
            raise InvalidRequest(rule, path="marker")
        try:
            marker.encode()
        except UnicodeEncodeError:
            raise InvalidRequest("marker is not valid UTF-8", path="marker") from None
        if marker in self.committing:
            raise Busy(self.committing[marker])


def marker_key(marker: str) -> bytes:
    """The key under which the marker is stored."""
    return facts.MARKER_KEY + marker.encode()
