"""The events that the server logs, with the facts of each event as `key=value`."""

import logging
from dataclasses import asdict

from goqueue import events

_log = logging.getLogger(__name__)

_LINES: dict[type[events.Event], tuple[int, str]] = {
    events.Administered: (logging.INFO, "administrative request carried out"),
    events.LogFailed: (logging.ERROR, "log failed after a disk error; it takes no more writes until a restart"),
    events.WriteRefused: (logging.WARNING, "append refused: no room on the disk; reads work"),
    events.DamageFound: (logging.ERROR, "damaged records found"),
    events.QuarantineStarted: (
        logging.ERROR,
        "topic quarantined; repair its files or move them out, then restart",
    ),
    events.JournalsConverted: (
        logging.INFO,
        "data directory converted; older versions of GoQueue refuse it from now on",
    ),
    events.FactUnreadable: (logging.ERROR, "stored fact skipped: it cannot be decoded"),
    events.TailTruncated: (logging.WARNING, "torn tail of the log truncated after a crash"),
    events.IndexRebuilt: (logging.INFO, "segment indexes rebuilt"),
    events.Compacted: (logging.INFO, "log compacted"),
    events.SegmentsDeleted: (logging.INFO, "segments deleted"),
    events.SegmentRolled: (logging.DEBUG, "segment created"),
}


def _write_line(event: events.Event) -> None:
    level, text = _LINES[type(event)]
    if isinstance(event, events.LogEvent | events.Administered) and _log.isEnabledFor(level):
        _log.log(level, text, extra=asdict(event))


write_line = events.Handlers(dict.fromkeys(_LINES, _write_line))
"""An observer that logs these events."""
