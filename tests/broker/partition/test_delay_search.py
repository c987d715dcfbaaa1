"""What is known about delayed messages in a log without a delay file."""

from goqueue.broker.partition.delay_search import DelaySearch
from goqueue.record import kernel
from goqueue.record.headers import DELIVER_AT
from goqueue.storage.delay_file import DelayFile
from goqueue.storage.log import Log
from goqueue.testing import MemoryDisk
from tests.storage.logs import append, open_log


def search_of(disk: MemoryDisk, log: Log, *, has_file: bool = False) -> DelaySearch:
    return DelaySearch(log, DelayFile(disk, "/data", exists=has_file))


def append_delayed(log: Log) -> None:
    log.append(kernel.encode([b"later"], headers=[{DELIVER_AT: "9000000000000000000"}]), now_ns=1)


def test_a_log_without_delayed_messages_has_none(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, [b"a"])
    search = search_of(disk, log)

    has_transactions = search.look_at_tail()

    assert not has_transactions
    assert (search.has_delays, search.unfiled_from) == (False, None)


def test_a_delayed_message_after_the_last_checkpoint_is_found(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_delayed(log)
    search = search_of(disk, log)

    search.look_at_tail()

    assert (search.has_delays, search.unfiled_from) == (True, 0)


def test_a_log_that_should_have_a_file_is_searched_from_its_start(disk: MemoryDisk) -> None:
    log = open_log(disk)
    log.mark_delayed()
    search = search_of(disk, log)

    search.look_at_tail()

    assert (search.has_delays, search.unfiled_from) == (True, 0)


def test_a_file_says_where_delayed_messages_are(disk: MemoryDisk) -> None:
    search = search_of(disk, open_log(disk), has_file=True)

    search.look_at_tail()

    assert (search.has_delays, search.unfiled_from) == (True, None)


def test_what_a_leader_has_seen_is_not_searched_again(disk: MemoryDisk) -> None:
    log = open_log(disk)
    search = search_of(disk, log)
    search.look_at_tail()
    append_delayed(log)

    search.looked_to(log.next_offset)
    search.look_at_tail()

    assert not search.has_delays


def test_what_is_appended_after_a_truncation_is_searched(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, [b"a", b"b"])
    search = search_of(disk, log)
    search.look_at_tail()
    log.truncate(1)

    search.truncated(1)
    append_delayed(log)
    search.look_at_tail()

    assert search.has_delays


def test_records_before_the_checkpoint_are_searched_when_they_are_read_and_once(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_delayed(log)
    append(log, [b"a"])
    log.close()
    log = open_log(disk)
    search = search_of(disk, log)
    search.look_at_tail()
    records = log.read(0).records

    plain = kernel.encode([b"a"])

    assert search.has_unknown(records, 0, 2)
    assert not search.has_unknown(memoryview(plain), 1, 2)
    assert not search.has_unknown(records, 1, 2)
