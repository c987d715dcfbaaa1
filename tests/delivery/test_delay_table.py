"""The table says what a dict of messages says, however its chunks were filled, packed and joined."""

from array import array

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from goqueue.delivery.delay_table import DelayColumns, DelayTable

Message = tuple[int, int, int]  # due, key, priority


def columns(messages: dict[int, Message]) -> DelayColumns:
    table = DelayColumns.empty()
    for offset, message in sorted(messages.items()):
        table.append(offset, *message)
    return table


message = st.tuples(st.integers(-5, 40), st.integers(0, 3) | st.just(0x0100_0000), st.integers(0, 4))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.tuples(st.integers(1, 3), message), max_size=30)),
        st.tuples(st.just("put"), st.dictionaries(st.integers(0, 60), message, max_size=5)),
        st.tuples(st.just("move"), st.tuples(st.integers(0, 200), st.integers(-9, 50))),
        st.tuples(st.just("settle"), st.sets(st.integers(0, 200), max_size=40)),
        st.tuples(st.just("settle below"), st.integers(0, 200)),
    ),
    max_size=40,
)


@given(steps, st.sampled_from([1, 2, 5, 16, 60]), st.sets(st.integers(0, 250)), st.integers(1, 30))
def test_it_says_what_a_dict_says(
    steps: list[tuple[str, object]], chunk_entries: int, wanted: set[int], count: int
) -> None:
    table = DelayTable(chunk_entries=chunk_entries)
    waiting: dict[int, Message] = {}
    end = 0
    for step in steps:
        match step:
            case "append", list(gaps):
                new: dict[int, Message] = {}
                for gap, one in gaps:
                    end += gap
                    new[end] = one
                table.put_many(columns(new))
                waiting |= new
            case "put", dict(new):
                table.put_many(columns(new))
                waiting |= new
                end = max(end, *new) if new else end
            case "move", (int(offset), int(due_ns)):
                if offset in waiting:
                    was_ns, *rest = waiting[offset]
                    assert table.move(offset, due_ns) == was_ns
                    waiting[offset] = (due_ns, *rest)  # type: ignore[assignment]
            case _, what:
                gone = what if isinstance(what, set) else set(range(what))  # type: ignore[call-overload]
                gone &= waiting.keys()
                waiting = {offset: one for offset, one in waiting.items() if offset not in gone}
                table.sweep(BitMap64(waiting), len(gone))

    for offset, (due_ns, _, priority) in waiting.items():
        assert table.due_ns(offset) == due_ns
        assert table.due_and_priority(offset) == (due_ns, priority)
    for some in (waiting, {offset: waiting[offset] for offset in wanted if offset in waiting}):
        offsets = BitMap64(some)
        assert table.select(offsets) == columns(some)
        assert table.dues_ns(offsets) == columns(some).dues_ns
        in_order = sorted((due_ns, offset, priority) for offset, (due_ns, _, priority) in some.items())
        assert table.soonest(offsets, count) == in_order[:count]
        assert table.soonest(offsets, len(some) + 1) == in_order
    for key_crc in (0, 1, 2, 3, 0x0100_0000, 0x0001_0000):
        with_key = {offset for offset, (_, key, _) in waiting.items() if key == key_crc}
        assert set(table.with_key(key_crc)) & waiting.keys() == with_key


def chunk_sizes(table: DelayTable) -> list[int]:
    return [len(chunk.columns.offsets) for chunk in table._chunks]


def test_room_is_given_back_as_messages_are_settled() -> None:
    table = DelayTable(chunk_entries=100)
    table.put_many(columns(dict.fromkeys(range(10000), (0, 0, 0))))
    waiting = BitMap64(range(10_000))

    for start in range(0, 10_000, 50):  # one in fifty goes on waiting
        gone = BitMap64(range(start, start + 49))
        waiting -= gone
        table.sweep(waiting, len(gone))
        assert sum(chunk_sizes(table)) <= 3 * len(waiting) + 400

    for _ in range(100):
        table.sweep(waiting, 49)
    assert sum(chunk_sizes(table)) <= 3 * len(waiting) + 400
    assert len(chunk_sizes(table)) <= 8
    assert table.dues_ns(waiting) == array("q", bytes(8 * 200))


def test_nothing_is_kept_when_nothing_waits() -> None:
    table = DelayTable(chunk_entries=100)
    table.put_many(columns(dict.fromkeys(range(150), (0, 0, 0))))

    table.sweep(BitMap64(), 1)

    assert chunk_sizes(table) == []
    table.put_many(columns({3: (7, 0, 0)}))
    assert table.due_ns(3) == 7


def test_a_page_of_many_looks_at_few_of_them() -> None:
    table = DelayTable(chunk_entries=1_000)
    table.put_many(columns({offset: (7, 0, offset % 5) for offset in range(100_000)}))

    assert table.soonest(BitMap64(range(0, 100_000, 2)), 3) == [(7, 0, 0), (7, 2, 2), (7, 4, 4)]
    assert table.soonest(BitMap64(range(50_000, 100_000)), 2) == [(7, 50_000, 0), (7, 50_001, 1)]
    table.move(99_999, 6)
    assert table.soonest(BitMap64(range(100_000)), 2) == [(6, 99_999, 4), (7, 0, 0)]


def test_all_but_one_of_a_chunk_are_not_all_of_it() -> None:
    table = DelayTable(chunk_entries=20)
    messages = {offset: (offset, 0, 0) for offset in range(40)}
    table.put_many(columns(messages))

    for missing in messages:
        others = {offset: message for offset, message in messages.items() if offset != missing}
        assert table.select(BitMap64(others)) == columns(others)
        assert table.dues_ns(BitMap64(others)) == columns(others).dues_ns


def test_what_comes_before_the_first_is_found() -> None:
    table = DelayTable(chunk_entries=4)
    table.put_many(columns({offset: (offset, 0, 0) for offset in range(100, 120)}))

    table.put_many(columns({7: (1, 0, 0)}))
    table.put_many(columns({5: (2, 0, 0), 6: (3, 0, 0)}))

    assert [table.due_ns(offset) for offset in (5, 6, 7, 100, 119)] == [2, 3, 1, 100, 119]
    assert list(table.dues_ns(BitMap64([5, 6, 7, 100]))) == [2, 3, 1, 100]


def test_what_comes_late_may_be_due_first() -> None:
    table = DelayTable(chunk_entries=100)
    table.put_many(columns({offset: (1_000 + offset // 100, 0, 0) for offset in range(450)}))
    every = BitMap64(range(451))

    table.put_many(columns({450: (5, 0, 0)}))  # into the last chunk
    assert table.soonest(every, 1) == [(5, 450, 0)]
    table.put_many(columns({50: (4, 0, 0)}))  # instead of one in the first
    assert table.soonest(every, 1) == [(4, 50, 0)]
    table.move(250, 3)
    assert table.soonest(every, 1) == [(3, 250, 0)]


def test_all_are_moved_by_the_same_time_and_found_at_the_new_one() -> None:
    table = DelayTable(chunk_entries=4)
    table.put_many(columns({offset: (100 - offset, 0, 0) for offset in range(10)}))

    table.shift(-1_000)
    assert [table.due_ns(offset) for offset in (0, 4, 9)] == [-900, -904, -909]
    assert table.soonest(BitMap64(range(10)), 1) == [(-909, 9, 0)]
    table.shift(2**63 - 1)
    table.shift(2**63 - 1)

    assert table.due_ns(0) == 2**63 - 1
