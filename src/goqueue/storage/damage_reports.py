"""What was found to be damaged in one log since it was opened.

Every reader that comes across a damaged record reports it; the same place counts once. The number of places is bounded,
so that a ruined disk fills neither memory nor the server's log. Readers themselves are told of all damage.
"""

from goqueue import events
from goqueue.record import kernel
from goqueue.storage.walk import Damage

DAMAGED_PLACES_MAX = 1_000


class DamageReports:
    """The damage of the log in one directory."""

    def __init__(self, directory: str, observe: events.Observer) -> None:
        self._directory = directory
        self._observe = observe
        self._places: set[tuple[str, int]] = set()
        self.found: list[Damage] = []

    def add(self, damage: Damage) -> None:
        place = (damage.path, damage.position)
        if place in self._places or len(self._places) >= DAMAGED_PLACES_MAX:
            return
        self._places.add(place)
        self.found.append(damage)
        self._observe(
            events.DamageFound(
                log=self._directory,
                path=damage.path,
                position=damage.position,
                bytes=damage.end - damage.position,
                first_offset=damage.first_offset,
                next_offset=damage.next_offset,
                reason=kernel.describe(damage.fault),
            )
        )
