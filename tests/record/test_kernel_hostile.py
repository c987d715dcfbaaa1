"""Damage, malice and bad luck: nothing is believed, read or written that should not be."""

import gc
import sys
import threading
from array import array
from contextlib import contextmanager, suppress

import pytest

from goqueue.errors import CorruptRecord, InvalidBatch, InvalidMessage
from goqueue.record.header import CRC_END, CRC_POSITION, FLAGS_KNOWN, HEADER, OFFSET_MAX, Flags, RecordFault
from tests.record.batches import TIME, needs_c, raw_kernels, stamped, tight, with_fields

RECORD = stamped([b"value"], keys=[b"key"], headers=[{"name": "text"}], first_offset=41)
WANTED = array("Q", [41, 2**64 - 1])
"""Its offset, and one behind all others, so that every record is looked at."""


def flipped(record: bytearray, bit: int) -> bytearray:
    copy = bytearray(record)
    copy[bit // 8] ^= 1 << bit % 8
    return copy


def test_every_single_flipped_bit_of_a_stored_record_is_found(kernel):
    neighbours = stamped([b"before"]), stamped([b"behind"], first_offset=42)

    for bit in range(len(RECORD) * 8):
        damaged = neighbours[0] + flipped(RECORD, bit) + neighbours[1]

        summary = kernel.scan(damaged)
        assert summary.fault
        assert (summary.record_count, summary.fault_position) == (1, len(neighbours[0]))
        for look in (lambda batch: kernel.decode(batch, None, kernel.RecordBase), kernel.columns):
            with pytest.raises(CorruptRecord) as caught:
                look(damaged)
            assert caught.value.position == len(neighbours[0])


def test_every_single_flipped_bit_is_survived_by_what_looks_at_no_checksum(kernel):
    for bit in range(len(RECORD) * 8):
        damaged = tight(flipped(RECORD, bit))

        for raw in (
            kernel._impl.filter(damaged, 0, OFFSET_MAX, 0, b"", 0, {b"key": 9}, 0),
            kernel._impl.strip(damaged, 5),
            kernel._impl.latest(damaged, {}),
            kernel._impl.outline(damaged),
            kernel._impl.select(damaged, WANTED, OFFSET_MAX),
            kernel._impl.columns(damaged, 0x7F, False),
            kernel._impl.decode(damaged, None, kernel.RecordBase, False),
        ):
            fault, position = raw[:2]
            assert position == (0 if fault else len(damaged))


def test_a_flipped_bit_in_a_batch_is_stamped_over_or_refused(kernel):
    for bit in range(len(RECORD) * 8):
        damaged = flipped(RECORD, bit)
        try:
            kernel.stamp(damaged, first_offset=41, timestamp=TIME)
        except InvalidBatch:
            continue

        assert kernel.scan(damaged).record_count == 1


def test_every_truncation_of_a_record_is_found(kernel):
    for size in range(1, len(RECORD)):
        summary = kernel.scan(tight(RECORD + RECORD[:size]))

        assert (summary.record_count, summary.fault, summary.fault_position) == (1, RecordFault.TRUNCATED, len(RECORD))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"magic": b"QG"}, RecordFault.MAGIC),
        ({"version": 0}, RecordFault.VERSION),
        ({"version": 2}, RecordFault.VERSION),
        ({"flags": Flags.HAS_HEADERS | 0x80}, RecordFault.UNKNOWN_FLAGS),
        ({"flags": 0xFF}, RecordFault.UNKNOWN_FLAGS),
        ({"flags": Flags.HAS_HEADERS | Flags.EMPTY_KEY}, RecordFault.FLAGS),
        ({"flags": 0}, RecordFault.FLAGS),
        ({"flags": Flags.HAS_HEADERS | Flags.TOMBSTONE}, RecordFault.FLAGS),
        ({"flags": Flags.HAS_HEADERS | Flags.COMMIT}, RecordFault.FLAGS),
        ({"hlen": 0}, RecordFault.FLAGS),
        ({"priority": 5}, RecordFault.PRIORITY),
        ({"priority": 255}, RecordFault.PRIORITY),
        ({"reserved": 1}, RecordFault.RESERVED),
        ({"klen": 0xFFFF}, RecordFault.TRUNCATED),
        ({"vlen": 0xFFFFFFFF}, RecordFault.TRUNCATED),
        ({"hlen": 0xFFFF}, RecordFault.TRUNCATED),
        ({"klen": 0xFFFF, "vlen": 0xFFFFFFFF, "hlen": 0xFFFF}, RecordFault.TRUNCATED),
        ({"klen": 4, "hlen": 13}, RecordFault.HEADERS),
        ({"vlen": 18, "hlen": 1}, RecordFault.HEADERS),
        ({"crc": 0}, RecordFault.CRC),
        ({"offset": 2**63}, RecordFault.OFFSET),
        ({"offset": 2**64 - 1}, RecordFault.OFFSET),
    ],
)
def test_each_way_of_being_wrong_has_its_name(kernel, changes, fault):
    summary = kernel.scan(with_fields(RECORD, **changes))

    assert (summary.fault, summary.record_count, summary.fault_position) == (fault, 0, 0)


def test_of_several_faults_the_first_in_the_list_is_named(kernel):
    wrong = {"magic": b"??", "version": 9, "flags": 0xFF, "priority": 9, "reserved": 9, "vlen": 0xFFFFFFFF}

    for name, fault in zip(wrong, (2, 3, 4, 6, 7, 1), strict=True):
        assert kernel.scan(with_fields(RECORD, **wrong)).fault == fault
        wrong |= {name: RECORD[3] if name == "flags" else {"magic": b"GQ", "version": 1}.get(name, 0)}


def test_a_value_over_the_limit_is_named_before_its_missing_bytes(kernel):
    records = with_fields(RECORD, vlen=0xFFFFFFFF)

    with pytest.raises(InvalidBatch, match="value over the limit"):
        kernel.stamp(records, first_offset=0, timestamp=TIME)


@pytest.mark.parametrize(
    "headers",
    [
        b"\0",
        b"\0\0",
        b"\0\x01",
        b"\0\x01\0",
        b"\0\x01\0\0",
        b"\0\x01\0\0\0",
        b"\0\x01\0\x01\0\0",
        b"\0\x01\0\0\0\x01",
        b"\0\x01\xff\xff\0\0",
        b"\0\x01\0\0\xff\xff!",
        b"\0\x01\0\0\xff\xfe",
        b"\0\x02\0\0\xff\xff",
        b"\0\x02\0\0\0\0",
        b"\0\x01\0\0\0\0!",
        b"\xff\xff\0\0\0\0",
    ],
)
def test_headers_that_do_not_fill_their_place_exactly_are_refused(kernel, headers):
    record = HEADER.pack(b"GQ", 1, Flags.HAS_HEADERS, 0, 0, TIME, 2, 0, 0, 0, len(headers)) + headers
    stored = tight(with_fields(record))
    producers = tight(record)

    assert kernel.scan(stored).fault == RecordFault.HEADERS
    with pytest.raises(InvalidBatch, match="malformed headers"):
        kernel.stamp(producers, first_offset=0, timestamp=TIME)
    assert producers == tight(record)


def test_only_the_fields_of_the_broker_are_written_by_stamp(kernel):
    records = kernel.encode([b"value"], keys=[b"key"], headers=[{"name": "text"}])
    guarded = bytearray(b"#" * 16 + records + b"#" * 16)

    with memoryview(guarded) as view:
        kernel.stamp(view[16:-16], first_offset=OFFSET_MAX, timestamp=-1)

    changed = [
        at - 16
        for at, (old, new) in enumerate(zip(b"#" * 16 + records + b"#" * 16, guarded, strict=True))
        if old != new
    ]
    assert set(changed) <= set(range(CRC_POSITION, CRC_END + 16))


class TestEncodeAmongHostileObjects:
    def test_a_list_that_shrinks_while_it_is_encoded(self, kernel):
        values = [b"a", b"b", b"c"]

        def keys():
            values.clear()
            yield from (b"k", b"l", b"m")

        assert kernel.encode(values, keys=keys()) == kernel.encode([b"a", b"b", b"c"], keys=[b"k", b"l", b"m"])
        assert values == []

    def test_an_iterable_that_fails_halfway(self, kernel):
        def keys():
            yield b"k"
            raise LookupError("gone")

        with pytest.raises(LookupError, match="gone"):
            kernel.encode([b"a", b"b"], keys=keys())

    def test_a_mapping_that_is_no_dict_is_never_asked_for_its_items(self, kernel):
        class Mapping:
            def __iter__(self):
                raise AssertionError

            keys = items = __len__ = __iter__

        with pytest.raises(InvalidMessage, match="headers must be a dict"):
            kernel.encode([b"a"], headers=[Mapping()])

    def test_a_dict_that_lies_about_itself_is_taken_for_what_it_holds(self, kernel):
        class Liar(dict):
            def __len__(self):
                return 10**6

            def items(self):
                raise AssertionError

            keys = values = __iter__ = items

        assert kernel.encode([b"a"], headers=[Liar(x="y")]) == kernel.encode([b"a"], headers=[{"x": "y"}])

    def test_text_that_encodes_itself_is_not_asked(self, kernel):
        class Text(str):
            __slots__ = ()

            def encode(self, *_):
                raise AssertionError

        assert kernel.encode([b"a"], headers=[{Text("x"): Text("y")}]) == kernel.encode([b"a"], headers=[{"x": "y"}])

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="__buffer__ came with Python 3.12")
    def test_a_buffer_that_clears_the_batch_when_it_is_asked(self, kernel):
        class Bomb:
            def __buffer__(self, flags):
                values.clear()
                keys.clear()
                headers.clear()
                return memoryview(b"boom")

        values, keys, headers = [Bomb(), Bomb()], [b"k", bytearray(b"l")], [{"a": "b"}, None]

        made = kernel.encode(values, keys=keys, headers=headers)

        assert made == kernel.encode([b"boom", b"boom"], keys=[b"k", b"l"], headers=[{"a": "b"}, None])

    def test_a_released_view_is_refused(self, kernel):
        view = memoryview(b"abc")
        view.release()

        with pytest.raises(ValueError, match="released"):
            kernel.encode([view])

    def test_the_buffers_of_the_messages_are_free_again_afterwards(self, kernel):
        value, key = bytearray(b"value"), bytearray(b"key")

        kernel.encode([value], keys=[key])
        for wrong in ({"keys": ["text"]}, {"keys": [key], "headers": [7]}, {"keys": [bytes(70_000)]}):
            with pytest.raises(Exception, match="message 0"):
                kernel.encode([value], **wrong)

        value.append(0)
        key.append(0)


class TestTables:
    def evil(self, table):
        class Evil:
            def __hash__(self):
                return hash(b"k")

            def __eq__(self, other):
                table.clear()
                return False

        return Evil()

    def test_a_table_that_empties_itself_when_it_is_asked(self, kernel):
        records = stamped([b"a"] * 3, keys=[b"k"] * 3)
        table = {}
        table[self.evil(table)] = 0

        assert kernel.filter(records, latest=table) == records

    def test_a_table_that_empties_itself_when_it_is_written(self, kernel):
        table = {}
        table[self.evil(table)] = 0

        kernel.latest(stamped([b"a"] * 3, keys=[b"k"] * 3), table)

        assert table[b"k"] == 2

    def test_a_table_that_fails(self, kernel):
        class Broken:
            def __hash__(self):
                return hash(b"k")

            def __eq__(self, other):
                raise LookupError("broken")

        records = stamped([b"a"], keys=[b"k"])

        with pytest.raises(LookupError, match="broken"):
            kernel.filter(records, latest={Broken(): 1})
        with pytest.raises(LookupError, match="broken"):
            kernel.latest(records, {Broken(): 1})


def test_the_buffer_is_free_again_after_each_call(kernel):
    good = stamped([b"a"] * 3, keys=[b"k"] * 3)
    calls = [
        kernel.crc32c,
        lambda buffer: kernel.crc32c(buffer, -1),
        lambda buffer: kernel.stamp(buffer, first_offset=0, timestamp=TIME),
        lambda buffer: kernel.stamp(buffer, first_offset=-1, timestamp=TIME),
        lambda buffer: kernel.scan(buffer, next_index_at=0, positions=True),
        lambda buffer: kernel.resync(buffer, 1, min_offset=0, max_offset=9),
        lambda buffer: kernel.decode(buffer, None, kernel.RecordBase),
        lambda buffer: kernel.decode(buffer, None, object),
        kernel.columns,
        kernel.filter,
        lambda buffer: kernel.filter(buffer, hidden=b"1"),
        lambda buffer: kernel.filter(buffer, latest={b"k": None}),
        lambda buffer: kernel.strip(buffer, "value"),
        lambda buffer: kernel.latest(buffer, {}),
        kernel.outline,
        lambda buffer: kernel.select(buffer, bytes(8), max_bytes=0),
        lambda buffer: kernel.select(bytes(buffer), buffer, max_bytes=0),
        lambda buffer: kernel.select(good, buffer, max_bytes=-1),
    ]

    for call in calls:
        for buffer in (bytearray(), bytearray(good), bytearray(good[:-1])):
            with suppress(ValueError, TypeError, InvalidBatch, CorruptRecord):
                call(buffer)
            buffer.append(0)


@needs_c
class TestMemory:
    def test_nothing_is_leaked(self):
        c, _ = raw_kernels()
        headers = {"gq-deliver-at": "7", "gq-expires-at": "7", "\udcff": b"\xff"}
        good = stamped([b"value"] * 5, keys=[b"key"] * 5, headers=[headers] * 5, priorities=[0, 1, 2, 3, 4])

        def attempt(function, *arguments):
            with suppress(ValueError, TypeError, OverflowError):
                function(*arguments)

        def everything():
            attempt(c.encode, [b"v", None], [bytearray(b"k"), None], [{"a": "\udcff"}, {}], [1, 2], (3, 4), [0, 1])
            attempt(c.encode, [b"v", "v"], None, None, 2, 0, 0)
            attempt(c.encode, [b"v"], [b"k"], [{"\udcff": "\ud800"}], 2, 0, 0)
            attempt(c.encode, [b"v"], [b"k"], [{"a": bytes(70_000)}], 2, 0, 0)
            attempt(c.encode, [b"v"], [b"k", b"l"], None, 2, 0, 0)
            attempt(c.encode, [b"v"], None, None, 2, 0, [2**64])
            for batch in (good, good[:-1], good[:50]):
                attempt(c.stamp, bytearray(batch), 0, 0, FLAGS_KNOWN, 100, 0, 0)
                attempt(c.scan, batch, 0, True, 0, OFFSET_MAX, 0, 0, True)
                attempt(c.resync, batch, 1, 0, OFFSET_MAX)
                attempt(c.decode, batch, object(), c.Record, True)
                attempt(c.decode, batch, object(), object, True)
                attempt(c.columns, batch, 0x7F, True)
                attempt(c.filter, batch, 1, 3, 0, bytes(16), 5, {b"key": 9}, 0)
                attempt(c.filter, batch, 1, 3, 0, bytes(15), 5, {b"key": 9}, 0)
                attempt(c.filter, batch, 1, 3, 0, bytes(16), 9, {b"key": ""}, 0)
                attempt(c.strip, batch, 5)
                attempt(c.latest, batch, {})
                attempt(c.outline, batch)
                attempt(c.select, batch, bytes(8) + b"\xff" * 8, 100)
                attempt(c.select, batch, b"\xff" * 8 + bytes(8), 100)
                attempt(c.select, batch, bytes(7), 100)
            attempt(c.Record, object(), 1, 2, 3, 4, b"key", b"value", None)
            attempt(c.Record, object(), 1, 2, 3, 4, "key", b"value", None)

        def blocks_after(rounds):
            for _ in range(rounds):
                everything()
            gc.collect()
            return sys.getallocatedblocks()

        blocks_after(20)

        # A leak shows each time; what the threads of the test runner allocate does not.
        assert min(abs(blocks_after(200) - blocks_after(200)) for _ in range(3)) < 50

    def test_records_keep_no_reference_behind(self):
        c, _ = raw_kernels()
        origin = object()
        before = sys.getrefcount(origin), sys.getrefcount(c.Record)

        records = c.decode(stamped([b"a"] * 10), origin, c.Record, True)[2]
        assert sys.getrefcount(origin) == before[0] + 10
        del records

        assert (sys.getrefcount(origin), sys.getrefcount(c.Record)) == before

    def test_records_are_none_of_the_garbage_collectors_business(self):
        c, _ = raw_kernels()

        class Slim(c.Record):
            __slots__ = ()

        for record_type in (c.Record, Slim):
            ((record,),) = c.decode(stamped([b"a"]), None, record_type, True)[2:]
            assert not gc.is_tracked(record)


@needs_c
class TestThreads:
    """Threads meet in buffers over 64 KiB, for which the GIL is released."""

    LARGE = stamped([bytes(1000)] * 100, keys=[b"key"] * 100, headers=[{"name": "text"}] * 100) * 20
    RECORD_BYTES = len(LARGE) // 2_000
    LENGTHS = slice(26, 34)

    @pytest.fixture
    def no_switching(self):
        """A thread only runs when another one lets it."""
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1_000)
        yield
        sys.setswitchinterval(interval)

    def test_other_threads_run_while_a_large_buffer_is_worked_on(self, no_switching):
        c, _ = raw_kernels()
        buffer = bytearray(self.LARGE)
        large = bytes(8 * 1024 * 1024)  # a checksum is so quick that less is not worth it
        c.stamp(buffer, 0, 0, FLAGS_KNOWN, 1 << 20, 0, 0)
        calls = {
            "crc32c": lambda: c.crc32c(large, 0),
            "stamp": lambda: c.stamp(buffer, 0, 0, FLAGS_KNOWN, 1 << 20, 0, 0),
            "scan": lambda: c.scan(buffer, 0, False, 0, OFFSET_MAX, 0, 0, True),
            "resync": lambda: c.resync(buffer, 1, 2**40, 2**41),
            "columns": lambda: c.columns(buffer, 0x7F, True),
            "filter": lambda: c.filter(buffer, 0, OFFSET_MAX, 0, b"", OFFSET_MAX, None, 0),
            "strip": lambda: c.strip(buffer, 5),
            "outline": lambda: c.outline(buffer),
            "select": lambda: c.select(buffer, WANTED, OFFSET_MAX),
            "select of many": lambda: c.select(b"", large, 0),
        }

        stuck = [name for name, call in calls.items() if not lets_another_thread_run(call)]

        assert stuck == []

    def test_columns_that_do_not_fit_any_more_are_not_filled(self, no_switching):
        c, _ = raw_kernels()
        original = bytes(self.LARGE[self.LENGTHS])
        longer_key = bytearray(original)
        longer_key[0:2] = (503).to_bytes(2)
        longer_key[2:6] = (500).to_bytes(4)
        buffer = bytearray(self.LARGE)

        def change():
            buffer[self.LENGTHS] = longer_key

        def read_until_changed():
            for _ in range(1_000):
                buffer[self.LENGTHS] = original
                with beside(change):
                    c.columns(buffer, 0x7F, True)

        with pytest.raises(RuntimeError, match="the buffer changed while it was read"):
            read_until_changed()

    def test_a_buffer_that_changes_while_it_is_read_does_no_harm(self):
        c, _ = raw_kernels()
        buffer = bytearray(self.LARGE)
        every_third = array("Q", range(0, 2_000, 3))
        done = threading.Event()

        def disturb():
            lengths = (0, 1, 3, 4, 100, 0xFFFF)
            turn = 0
            while not done.is_set():
                record = turn * 7 % 2_000 * self.RECORD_BYTES
                buffer[record + 26 : record + 28] = lengths[turn % 6].to_bytes(2)
                buffer[record + 32 : record + 34] = lengths[turn % 5].to_bytes(2)
                buffer[record + 26 : record + 34] = self.LARGE[self.LENGTHS]
                turn += 1

        disturber = threading.Thread(target=disturb)
        disturber.start()
        try:
            for _ in range(50):
                with suppress(RuntimeError):
                    c.columns(buffer, 0x7F, False)
                c.filter(buffer, 0, OFFSET_MAX, 0, b"", 0, None, 0)
                c.decode(buffer, None, c.Record, False)
                c.scan(buffer, 0, False, 0, OFFSET_MAX, 0, 0, True)
                c.resync(buffer, 1, 0, OFFSET_MAX)
                c.stamp(buffer, 0, 0, FLAGS_KNOWN, 1 << 20, 0, 0)
                c.outline(buffer)
                c.select(buffer, every_third, OFFSET_MAX)
        finally:
            done.set()
            disturber.join()


@contextmanager
def beside(action):
    """Another thread stands ready to run the action as soon as it is let."""
    gate = threading.Lock()
    gate.acquire()
    other = threading.Thread(target=lambda: (gate.acquire(), action()))
    other.start()
    gate.release()
    try:
        yield
    finally:
        other.join()


def lets_another_thread_run(call):
    progress = []
    with beside(lambda: progress.append(True)):
        for _ in range(5_000):
            call()
            if progress:
                break
        return bool(progress)
