"""Facts that are to be written: producers and markers that have changed.

What has changed is noted, not encoded: a producer that changes three times before facts are taken is written once, as
it is at that moment. Facts that an answer has to wait for are taken with `facts_of`, which also clears the note.
"""

from goqueue.transactions.committed import CommittedMarkers, marker_key
from goqueue.transactions.producers import ProducerEntry

Facts = dict[bytes, bytes | None]
"""Records for `__transactions`, by key; None is a tombstone."""


class FactOutbox:
    """Which producers and markers have changed since they were last written."""

    def __init__(self, markers: CommittedMarkers) -> None:
        self._markers = markers
        self._changed: dict[bytes, ProducerEntry | str] = {}

    def note(self, changed: ProducerEntry | str) -> None:
        """Write the producer or the marker with the next `take`."""
        self._changed[_key(changed)] = changed

    def take(self) -> Facts:
        changed, self._changed = self._changed, {}
        return {key: self._fact(one) for key, one in changed.items()}

    def facts_of(self, *things: ProducerEntry | str) -> Facts:
        """These producers and markers as they are now, for the caller to write at once."""
        found: Facts = {}
        for one in things:
            key = _key(one)
            self._changed.pop(key, None)
            found[key] = self._fact(one)
        return found

    def _fact(self, one: ProducerEntry | str) -> bytes | None:
        return one.fact() if isinstance(one, ProducerEntry) else self._markers.fact(one)


def _key(one: ProducerEntry | str) -> bytes:
    return one.key if isinstance(one, ProducerEntry) else marker_key(one)
