"""The decisions of replication: is it the same log, where does it diverge, what comes next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.broker.partition.fetching import (
    NO_RECORDS,
    Diverging,
    Fetch,
    FetchAnswer,
    FetchRefusal,
    LogAnswer,
    LogPosition,
    OutOfRange,
    Records,
    Restart,
    Truncate,
    compared,
    epoch_at,
    is_about,
    last_epoch,
    read_batches,
    refusal_of,
    to_do,
)
from goqueue.errors import CorruptRecord
from goqueue.record import kernel
from goqueue.record.identity import BatchIdentity
from goqueue.storage.epochs import LeaderEpochs
from goqueue.storage.log import Log
from goqueue.testing import MemoryDisk
from tests.broker.partition.replicated import batch_of

NOTHING = LogPosition(0, NO_RECORDS, 0, 0)


def history(*starts: tuple[int, int]) -> LeaderEpochs:
    """Epochs with their first offsets."""
    disk = MemoryDisk()
    disk.make_directory("/log")
    epochs = LeaderEpochs.load(disk, "/log")
    for epoch, start in starts:
        epochs.assign(epoch, start)
    return epochs


def at(offset: int, epoch: int) -> LogPosition:
    return LogPosition(offset, epoch, offset, 0)


def answer(found: Records | Diverging | OutOfRange | None, *, asked: LogPosition = NOTHING, hw: int = 0) -> LogAnswer:
    return LogAnswer(asked, found, hw, log_start=7)


# --- the leader ----------------------------------------------------------------------------------


def test_only_equal_epochs_understand_each_other() -> None:
    assert refusal_of(3, 3) is None
    assert refusal_of(2, 3) is FetchRefusal.FENCED_EPOCH
    assert refusal_of(4, 3) is FetchRefusal.UNKNOWN_EPOCH


@pytest.mark.parametrize(
    ("position", "found"),
    [
        (at(8, 3), None),
        (at(10, 3), None),
        (at(11, 3), Diverging(3, 10)),
        (at(5, 1), None),
        (at(6, 1), Diverging(1, 5)),
        (at(7, 2), Diverging(1, 5)),  # the leader never heard of epoch 2
        (at(12, 9), Diverging(3, 10)),
        (NOTHING, None),
    ],
)
def test_the_leader_finds_where_the_logs_diverge_by_the_epoch_of_the_last_record(
    position: LogPosition, found: Diverging | None
) -> None:
    assert compared(position, history((1, 0), (3, 5)), start=0, end=10) == found


def test_the_first_epoch_needs_no_entry() -> None:
    assert compared(at(4, 0), history(), start=0, end=4) is None
    assert compared(at(5, 0), history((2, 3)), start=0, end=9) == Diverging(0, 3)
    assert last_epoch(history((2, 3)), start=0, end=3) == 0
    assert last_epoch(history(), start=4, end=4) == NO_RECORDS


@pytest.mark.parametrize("position", [at(4, 3), at(5, 2), at(9, 2), LogPosition(11, NO_RECORDS, 11, 0)])
def test_a_follower_that_the_leader_cannot_compare_starts_anew(position: LogPosition) -> None:
    assert compared(position, history((3, 5)), start=5, end=10) == OutOfRange()


def test_records_are_sent_by_epoch() -> None:
    epochs = history((1, 2), (3, 5))

    assert epoch_at(epochs, 0, end=9) == (0, 0, 2)
    assert epoch_at(epochs, 4, end=9) == (1, 2, 5)
    assert epoch_at(epochs, 5, end=9) == (3, 5, 9)
    assert epoch_at(epochs, 1, end=1) == (0, 0, 1)


def test_a_batch_of_a_producer_is_never_divided() -> None:
    log = Log.open(MemoryDisk(), "/log")
    for sequence in (0, 3, 6):
        log.append(batch_of(BatchIdentity(7, 0, sequence, 3)), now_ns=1)

    ends = []
    for max_bytes in (1, 200, 300, 1 << 20):
        records, count, next_offset = read_batches(log.reader(0), max_bytes=max_bytes, to_offset=9)
        assert kernel.scan(records).record_count == count == next_offset
        ends.append(next_offset)

    assert (ends[0], ends[-1]) == (3, 9)
    assert set(ends) == {3, 6, 9}


def test_damaged_records_are_not_taken_for_a_gap() -> None:
    disk = MemoryDisk()
    log = Log.open(disk, "/log")
    for _ in range(3):
        log.append(kernel.encode([b"value"]), now_ns=1)
    log.flush()
    disk.flip_bit("/log/00000000000000000000.log", 36, 1)

    with pytest.raises(CorruptRecord):
        read_batches(log.reader(0), max_bytes=1 << 20, to_offset=3)


# --- the follower --------------------------------------------------------------------------------


def test_a_follower_cuts_at_the_end_of_the_epoch_in_whichever_log_it_ended_first() -> None:
    own = history((1, 0), (2, 4))

    assert to_do(answer(Diverging(1, 6)), own, start=0, end=9) == Truncate(4)
    assert to_do(answer(Diverging(1, 3)), own, start=0, end=9) == Truncate(3)
    assert to_do(answer(Diverging(2, 6)), own, start=0, end=9) == Truncate(6)


def test_a_follower_that_cannot_cut_starts_where_the_leader_does() -> None:
    assert to_do(answer(OutOfRange()), history(), start=0, end=9) == Restart(7)
    assert to_do(answer(Diverging(1, 3)), history((1, 4)), start=4, end=9) == Restart(7)


def test_an_answer_counts_only_if_the_follower_would_ask_the_same_now() -> None:
    own = history((1, 0), (2, 4))

    assert is_about(answer(None, asked=at(9, 2)), own, start=0, end=9)
    assert not is_about(answer(None, asked=at(8, 2)), own, start=0, end=9)
    assert not is_about(answer(OutOfRange(), asked=at(9, 1)), own, start=0, end=9)  # cut, and grown again


def test_an_answer_is_news_if_it_has_records_or_a_higher_high_watermark() -> None:
    fetch = Fetch(1, at(5, 1), at(2, 1))

    def has_news(log: LogAnswer, ledger: LogAnswer) -> bool:
        return FetchAnswer(1, None, log, ledger).has_news(fetch)

    assert not has_news(answer(None), answer(None))
    assert has_news(answer(None, hw=1), answer(None))
    assert has_news(answer(None), answer(Diverging(0, 1)))
    assert has_news(answer(OutOfRange()), answer(None))
    assert FetchAnswer(2, FetchRefusal.FENCED_EPOCH, None, None).has_news(fetch)


Epochs = st.lists(st.integers(1, 4), max_size=12)


def _histories(written: list[int]) -> LeaderEpochs:
    starts = [(epoch, at) for at, epoch in enumerate(written) if at == 0 or written[at - 1] != epoch]
    return history(*starts)


@given(common=Epochs, leaders=Epochs, followers=Epochs)
def test_cutting_ends_at_the_longest_common_part(common: list[int], leaders: list[int], followers: list[int]) -> None:
    """Offsets and epochs identify a record: what two leaders wrote after the common part is of different epochs."""
    leader = sorted(common) + [max(common, default=0) + 2 * epoch for epoch in sorted(leaders)]
    follower = sorted(common) + [max(common, default=0) + 2 * epoch - 1 for epoch in sorted(followers)]
    theirs, mine = _histories(leader), follower

    for _ in range(20):
        own = _histories(mine)
        position = at(len(mine), last_epoch(own, start=0, end=len(mine)))
        found = compared(position, theirs, start=0, end=len(leader))
        if found is None:
            break
        todo = to_do(answer(found, asked=position)._replace(log_start=0), own, start=0, end=len(mine))
        assert isinstance(todo, Truncate | Restart)
        assert todo[0] < len(mine)
        mine = mine[: todo[0]]

    assert mine == leader[: len(mine)]
    assert len(mine) >= len(common)
