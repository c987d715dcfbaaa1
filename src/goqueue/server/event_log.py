"""Which events of the cores are worth a line in the log."""

import logging
from dataclasses import asdict

from goqueue import events

_log = logging.getLogger(__name__)

_LINES: dict[type[events.Event], tuple[int, str]] = {
    events.LogFailed: (logging.ERROR, "a disk error stopped a log; it takes no more writes"),
    events.WriteRefused: (logging.WARNING, "there is no room for more; writes are refused, reads go on"),
    events.DamageFound: (logging.ERROR, "stored records are damaged"),
    events.QuarantineStarted: (
        logging.ERROR,
        "a topic cannot be served; repair its files, or move them out, and restart",
    ),
    events.FactUnreadable: (logging.ERROR, "a stored fact cannot be understood, and is passed over"),
    events.TailTruncated: (logging.WARNING, "recovery cut off what a crash had left unfinished"),
    events.IndexRebuilt: (logging.INFO, "the indexes of a segment were rebuilt"),
    events.Compacted: (logging.INFO, "a log was compacted"),
    events.SegmentsDeleted: (logging.INFO, "old segments were deleted"),
    events.SegmentRolled: (logging.DEBUG, "a segment was begun"),
}


def _write_line(event: events.Event) -> None:
    level, text = _LINES[type(event)]
    if isinstance(event, events.LogEvent) and _log.isEnabledFor(level):
        _log.log(level, text, extra=asdict(event))


write_line = events.Handlers(dict.fromkeys(_LINES, _write_line))
"""Logs an event with its facts, if it is worth it."""
