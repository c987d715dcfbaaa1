"""A batch that is sent again is recognised, through restarts, for as long as its producer can be remembered."""

import tracemalloc
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import GoQueueError, OutOfOrderSequence, ProducerFenced
from goqueue.record import kernel
from goqueue.record.headers import PRODUCER
from goqueue.record.identity import DERIVED_FROM, BatchIdentity
from goqueue.transactions.sequences import (
    EVICTED_PART,
    IDLE_NS_MAX,
    LOOK_NS,
    SINGLE_IDLE_NS_MAX,
    WINDOW,
    YOUNG_FACTOR,
    YOUNG_NS,
    KnownBatch,
    LastBatch,
    Sequences,
)

TIME = 1_700_000_000 * 10**9


@dataclass
class Model:
    """All batches ever, by producer; what `Sequences` must say follows from them."""

    epochs: dict[int, int] = field(default_factory=dict)
    batches: dict[int, list[KnownBatch]] = field(default_factory=dict)  # of the epoch that counts

    def answer(self, batch: BatchIdentity) -> KnownBatch | type[GoQueueError] | None:
        producer_id, epoch, sequence, count, _ = batch
        known = self.batches.get(producer_id, [])
        if epoch < self.epochs.get(producer_id, 0):
            return ProducerFenced
        if not known or epoch > self.epochs[producer_id]:
            return None if sequence in (0, 1) else OutOfOrderSequence
        expected = known[-1].first_sequence + known[-1].record_count
        if sequence >= expected:
            return None if sequence == expected else OutOfOrderSequence
        for one in known[-WINDOW:]:
            if (one.first_sequence, one.record_count) == (sequence, count):
                return one
        if len(known) >= WINDOW and sequence + count <= known[-WINDOW].first_sequence:
            return KnownBatch(sequence, count, -1, 0)
        return OutOfOrderSequence

    def note(self, batch: BatchIdentity, offset: int) -> None:
        if batch.epoch != self.epochs.get(batch.producer_id):
            self.epochs[batch.producer_id] = batch.epoch
            self.batches[batch.producer_id] = []
        known = KnownBatch(batch.first_sequence, batch.record_count, offset, TIME + offset)
        self.batches[batch.producer_id].append(known)


def said(sequences: Sequences, batch: BatchIdentity) -> KnownBatch | type[GoQueueError] | None:
    try:
        return sequences.check(batch)
    except (OutOfOrderSequence, ProducerFenced) as error:
        return type(error)


def stored(batch: BatchIdentity, offset: int) -> bytearray:
    """The batch as it stands in the log."""
    headers: list[dict[str, str | bytes] | None] = [{PRODUCER: batch.encode()}, *[None] * (batch.record_count - 1)]
    records = kernel.encode([b"v"] * batch.record_count, headers=headers)
    kernel.stamp(records, first_offset=offset, timestamp=TIME + offset)
    return records


steps = st.lists(
    st.one_of(
        st.tuples(st.just("next"), st.integers(1, 3), st.integers(1, 4)),
        st.tuples(st.just("again"), st.integers(1, 3), st.integers(1, 9)),
        st.tuples(
            st.just("any"), st.integers(1, 3), st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 4))
        ),
        st.tuples(st.just("epoch"), st.integers(1, 3), st.integers(0, 1)),
        st.tuples(st.just("snapshot"), st.none(), st.none()),
        st.tuples(st.just("restart"), st.booleans(), st.integers(1, 400)),
    ),
    max_size=60,
)


@given(steps)
def test_it_says_what_a_list_of_all_batches_says(steps: list[tuple[str, object, object]]) -> None:
    model, sequences = Model(), Sequences()
    log, offset = bytearray(), 0
    starts: list[tuple[int, int]] = []  # (offset, position) of each batch
    snapshot = b""

    for kind, which, what in steps:
        if kind == "snapshot":
            snapshot = sequences.snapshot(offset)
            continue
        if kind == "restart":
            sequences = Sequences()
            begin = sequences.restore(snapshot) if snapshot and which else 0
            position = next((at for first, at in starts if first >= begin), len(log))
            sequences.note_records(memoryview(log)[position:])
            continue
        assert isinstance(which, int)
        known = model.batches.get(which, [])
        epoch = model.epochs.get(which, 0)
        following = known[-1].first_sequence + known[-1].record_count if known else 0
        match kind, what:
            case "next", int(count):
                batch = BatchIdentity(which, epoch, following, count)
            case "again", int(back):
                if len(known) < back:
                    continue
                batch = BatchIdentity(which, epoch, known[-back].first_sequence, known[-back].record_count)
            case "epoch", int(first):
                batch = BatchIdentity(which, epoch + 1, first, 2)
            case _, (int(epoch), int(first), int(count)):
                batch = BatchIdentity(which, epoch, first, count)

        expected = model.answer(batch)
        assert said(sequences, batch) == expected
        if expected is None:
            sequences.note(batch, first_offset=offset, timestamp_ns=TIME + offset)
            model.note(batch, offset)
            starts.append((offset, len(log)))
            log += stored(batch, offset)
            offset += batch.record_count


def test_five_batches_are_remembered_with_their_offsets_and_older_ones_without() -> None:
    sequences = Sequences()
    batches = [BatchIdentity(1, 0, 10 * n, 10) for n in range(7)]
    for number, batch in enumerate(batches):
        sequences.note(batch, first_offset=100 + 10 * number, timestamp_ns=TIME)

    assert [known.first_offset for batch in batches if (known := sequences.check(batch))] == [
        -1, -1, 120, 130, 140, 150, 160,
    ]  # fmt: skip


@pytest.mark.parametrize(("first", "count"), [(10, 5), (15, 5), (5, 10), (10, 11), (0, 11), (19, 1)])
def test_a_batch_that_cuts_across_what_is_known_is_out_of_order(first: int, count: int) -> None:
    sequences = Sequences()
    for number in range(3):
        sequences.note(BatchIdentity(1, 0, 10 * number, 10), first_offset=0, timestamp_ns=TIME)

    with pytest.raises(OutOfOrderSequence):
        sequences.check(BatchIdentity(1, 0, first, count))


def test_a_number_below_the_first_one_stored_is_out_of_order() -> None:
    sequences = Sequences()
    sequences.note(BatchIdentity(1, 0, 1, 1), first_offset=0, timestamp_ns=TIME)

    with pytest.raises(OutOfOrderSequence):
        sequences.check(BatchIdentity(1, 0, 0, 1))


def test_what_was_refused_says_what_was_expected() -> None:
    sequences = Sequences()
    sequences.note(BatchIdentity(1, 3, 0, 5), first_offset=0, timestamp_ns=TIME)

    with pytest.raises(OutOfOrderSequence) as gap:
        sequences.check(BatchIdentity(1, 3, 7, 1))
    with pytest.raises(ProducerFenced) as fenced:
        sequences.check(BatchIdentity(1, 2, 5, 1))

    assert (gap.value.sequence, gap.value.expected) == (7, 5)
    assert (fenced.value.epoch, fenced.value.current_epoch) == (2, 3)


NOISE = b"\0\1\0\x0bgq-producer\0\x079:9:9:9"


def test_keys_values_and_headers_that_contain_the_name_do_not_confuse_a_restart() -> None:
    records = bytearray()
    offset = 0
    for batch, headers in [
        (BatchIdentity(1, 0, 0, 2), {"note": "gq-producer"}),
        (None, {"note": "gq-producer"}),
        (BatchIdentity(2, 0, 0, 2), {}),
        (None, None),
        (BatchIdentity(1, 0, 2, 2), {}),
    ]:
        first: dict[str, str | bytes] = {**(headers or {}), **({PRODUCER: batch.encode()} if batch else {})}
        made = kernel.encode([NOISE, NOISE * 100], keys=[b"gq-producer", NOISE], headers=[first, headers])
        kernel.stamp(made, first_offset=offset, timestamp=TIME)
        records += made
        offset += 2
    sequences = Sequences()

    sequences.note_records(memoryview(records))

    assert len(sequences) == 2
    assert sequences.check(BatchIdentity(1, 0, 2, 2)) == KnownBatch(2, 2, 8, TIME)
    assert sequences.check(BatchIdentity(1, 0, 0, 2)) == KnownBatch(0, 2, 0, TIME)
    assert sequences.check(BatchIdentity(2, 0, 0, 2)) == KnownBatch(0, 2, 4, TIME)


@pytest.mark.parametrize("raw", [b"", b"1:2:3", b"1:2:x:3:4", b"0:0:0:1", b"9" * 300])
def test_a_malformed_identity_in_the_log_is_passed_over(raw: bytes) -> None:
    records = kernel.encode([b"v", b"w"], headers=[{PRODUCER: raw}, {PRODUCER: b"5:0:0:1"}])
    kernel.stamp(records, first_offset=0, timestamp=TIME)
    sequences = Sequences()

    sequences.note_records(memoryview(records))

    assert len(sequences) == 1
    assert sequences.check(BatchIdentity(5, 0, 0, 1)) == KnownBatch(0, 1, 1, TIME)


def test_the_producer_that_was_silent_for_longest_is_forgotten_first() -> None:
    sequences = Sequences(producers_max=3)
    for offset, producer_id in enumerate((1, 2, 3, 1, 4)):
        following = 1 if sequences._producers.get(producer_id) else 0
        now_ns = TIME + (YOUNG_NS if producer_id == 4 else 0)
        sequences.note(BatchIdentity(producer_id, 0, following, 1), first_offset=offset, timestamp_ns=now_ns)

    assert len(sequences) == 3
    assert said(sequences, BatchIdentity(1, 0, 2, 1)) is None
    assert said(sequences, BatchIdentity(2, 0, 1, 1)) is None  # as if it were new
    assert said(sequences, BatchIdentity(2, 0, 5, 1)) is OutOfOrderSequence


def test_a_producer_that_may_still_be_sending_again_is_spared_while_there_is_room_for_it() -> None:
    sequences = Sequences(producers_max=3)
    for producer_id in range(1, 3 * YOUNG_FACTOR + 1):
        sequences.note(BatchIdentity(producer_id, 0, 0, 1), first_offset=producer_id, timestamp_ns=TIME)
    assert said(sequences, BatchIdentity(1, 0, 0, 1)) == KnownBatch(0, 1, 1, TIME)

    sequences.note(BatchIdentity(99, 0, 0, 1), first_offset=99, timestamp_ns=TIME)

    assert len(sequences) == 3 * YOUNG_FACTOR
    assert said(sequences, BatchIdentity(1, 0, 0, 1)) is None  # as if it were new


def test_a_producer_is_forgotten_after_seven_silent_days_and_not_before() -> None:
    sequences = Sequences()
    sequences.note(BatchIdentity(1, 0, 0, 2), first_offset=0, timestamp_ns=TIME)
    sequences.note(BatchIdentity(2, 0, 0, 2), first_offset=2, timestamp_ns=TIME + 1 + LOOK_NS)

    sequences.forget_idle(now_ns=TIME + IDLE_NS_MAX - LOOK_NS - 1)
    assert len(sequences) == 2
    sequences.forget_idle(now_ns=TIME + IDLE_NS_MAX)
    assert len(sequences) == 1
    sequences.forget_idle(now_ns=TIME + 2 * IDLE_NS_MAX)
    assert len(sequences) == 0


def test_the_producers_of_the_broker_itself_are_never_forgotten_for_being_idle() -> None:
    sequences = Sequences(producers_max=10)
    sequences.note(BatchIdentity(DERIVED_FROM, 3, 0, 1), first_offset=0, timestamp_ns=TIME)
    sequences.forget_idle(now_ns=TIME + 100 * IDLE_NS_MAX)
    for number in range(1, 100):
        sequences.note(BatchIdentity(number, 0, 0, 1), first_offset=number, timestamp_ns=TIME + 101 * IDLE_NS_MAX)

    assert len(sequences) < 100
    assert sequences.last_batch(DERIVED_FROM) == LastBatch(3, 0, 1, 0)
    assert sequences.last_batch(1) is None


def test_the_last_batch_of_a_producer_is_that_of_its_highest_epoch() -> None:
    sequences = Sequences()
    for batch, offset in (
        (BatchIdentity(1, 0, 0, 5), 0),
        (BatchIdentity(1, 0, 5, 2), 9),
        (BatchIdentity(1, 2, 0, 4), 30),
    ):
        sequences.note(batch, first_offset=offset, timestamp_ns=TIME)
        assert sequences.last_batch(1) == LastBatch(batch.epoch, batch.first_sequence, batch.record_count, offset)
    assert LastBatch(2, 7, 4, 30).end_sequence == 11


@pytest.mark.parametrize("first", [0, 1])
def test_a_producer_that_only_ever_sent_one_record_is_forgotten_after_a_day(first: int) -> None:
    sequences = Sequences()
    sequences.note(BatchIdentity(1, 0, first, 1), first_offset=0, timestamp_ns=TIME)
    sequences.note(BatchIdentity(2, 0, first, 2), first_offset=1, timestamp_ns=TIME)  # a batch of two
    sequences.note(BatchIdentity(3, 0, first, 1), first_offset=3, timestamp_ns=TIME)  # two batches
    sequences.note(BatchIdentity(3, 0, first + 1, 1), first_offset=4, timestamp_ns=TIME)
    sequences.note(BatchIdentity(4, 1, first, 1), first_offset=5, timestamp_ns=TIME)  # fences an older epoch

    sequences.forget_idle(now_ns=TIME + SINGLE_IDLE_NS_MAX - LOOK_NS)
    assert len(sequences) == 4
    sequences.forget_idle(now_ns=TIME + SINGLE_IDLE_NS_MAX)

    assert len(sequences) == 3
    assert said(sequences, BatchIdentity(1, 0, 1, 1)) is None
    assert said(sequences, BatchIdentity(3, 0, first, 1)) == KnownBatch(first, 1, 3, TIME)


def test_an_id_that_was_used_once_costs_a_few_hundred_bytes() -> None:
    count = 10_000
    tracemalloc.start()
    try:
        sequences = Sequences()
        before = tracemalloc.get_traced_memory()[0]
        for producer_id in range(2**40, 2**40 + count):
            sequences.note(BatchIdentity(producer_id, 0, 1, 1), first_offset=producer_id, timestamp_ns=TIME)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert used / count < 300


def test_the_search_for_the_oldest_is_made_once_for_many_of_them() -> None:
    sequences = Sequences(producers_max=100)
    for producer_id in range(1, 102):
        now_ns = TIME + producer_id * YOUNG_NS
        sequences.note(BatchIdentity(producer_id, 0, 0, 1), first_offset=0, timestamp_ns=now_ns)

    assert len(sequences) == 100 - 100 // EVICTED_PART
    assert said(sequences, BatchIdentity(101, 0, 0, 1)) == KnownBatch(0, 1, 0, TIME + 101 * YOUNG_NS)


def test_a_snapshot_brings_back_the_window_and_who_was_silent_for_longest() -> None:
    sequences = Sequences(producers_max=2)
    for number in range(9):
        sequences.note(BatchIdentity(7, 1, number, 1), first_offset=number, timestamp_ns=TIME)
    sequences.note(BatchIdentity(8, 0, 0, 1), first_offset=9, timestamp_ns=TIME + 1)

    restored = Sequences(producers_max=2)
    assert restored.restore(sequences.snapshot(10)) == 10
    restored.note(BatchIdentity(9, 0, 0, 1), first_offset=10, timestamp_ns=TIME + YOUNG_NS)

    assert len(restored) == 2
    assert said(restored, BatchIdentity(8, 0, 0, 1)) == KnownBatch(0, 1, 9, TIME + 1)
    assert said(restored, BatchIdentity(7, 0, 0, 1)) is None
