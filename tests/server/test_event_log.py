"""Which events are worth a line, and that the line has the facts of the event."""

import logging

import pytest

from goqueue import events
from goqueue.server.event_log import write_line


def test_a_disk_that_failed_is_an_error_with_its_facts(caplog: pytest.LogCaptureFixture) -> None:
    write_line(events.LogFailed(log="/data/topics/orders/0/log", operation="sync", reason="Input/output error"))

    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.message == "log failed after a disk error; it takes no more writes until a restart"
    assert vars(record)["log"] == "/data/topics/orders/0/log"
    assert vars(record)["reason"] == "Input/output error"


def test_what_happens_with_every_batch_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        write_line(events.Flushed(log="x", bytes=1, durable_offset=1))

    assert caplog.records == []


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (events.TailTruncated(log="x", bytes=7), logging.WARNING),
        (events.WriteRefused(log="x", reason="No space left on device"), logging.WARNING),
        (events.Compacted(log="x", bytes_before=2, bytes_after=1, segments_before=2, segments_after=1), logging.INFO),
        (events.SegmentRolled(log="x", base_offset=3), logging.DEBUG),
    ],
)
def test_the_level_says_how_much_it_matters(caplog: pytest.LogCaptureFixture, event: events.Event, level: int) -> None:
    with caplog.at_level(logging.DEBUG):
        write_line(event)

    assert [record.levelno for record in caplog.records] == [level]
