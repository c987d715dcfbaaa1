import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import GoQueueError, InvalidConfig, InvalidRequest, PartitionNotFound
from goqueue.names import TopicPartition
from goqueue.spark import plan
from goqueue.spark.options import EARLIEST, LATEST, Edge, Timestamp, TopicOffsets
from goqueue.spark.plan import Bounds, Condition, DataLost, OffsetRange, Positions, Sized, TopicBounds, TopicPositions
from goqueue.spark.spans import union
from goqueue.wire.scan_reports import Piece

MIB = 1024 * 1024


def world(**topics: Sequence[tuple[int, int]]) -> dict[str, TopicBounds]:
    """Topics by name, with where their partitions begin and end."""
    return {
        name: TopicBounds(f"id-{name}", {number: Bounds(*bounds, 100) for number, bounds in enumerate(partitions)})
        for name, partitions in topics.items()
    }


def at(**topics: dict[int, int]) -> Positions:
    return {name: TopicPositions(f"id-{name}", offsets) for name, offsets in topics.items()}


def reasons(judged: plan.Judged) -> list[str]:
    return [loss.reason for loss in judged.losses]


ranges = st.lists(
    st.builds(lambda start, length: (start, start + length), st.integers(0, 100), st.integers(0, 200)),
    max_size=6,
).map(lambda found: [OffsetRange("t", partition, *one) for partition, one in enumerate(found)])
some_ranges = ranges.map(lambda found: [one for one in found if one.start < one.end]).filter(bool)


@st.composite
def ranges_in_pieces(draw: st.DrawFn) -> tuple[list[OffsetRange], list[list[Piece]]]:
    found = draw(some_ranges)
    pieces = []
    for one in found:
        inner = draw(st.sets(st.integers(one.start, one.end - 1), max_size=8)) - {one.start}
        sizes = st.integers(0, 1_000)
        pieces.append([Piece(offset, draw(sizes)) for offset in (one.start, *sorted(inner))])
    return found, pieces


class TestPositions:
    def test_a_checkpoint_tells_which_topic_is_meant_and_where_each_partition_goes_on(self) -> None:
        positions = {"orders": TopicPositions("abc", {10: 1, 2: 9, 0: 5}), "b": TopicPositions("x", {})}
        text = '{"b": {"id": "x"}, "orders": {"id": "abc", "0": 5, "2": 9, "10": 1}}'
        assert json.dumps(plan.to_json(positions)) == text

    @given(
        st.dictionaries(
            st.text(min_size=1, max_size=5),
            st.builds(
                TopicPositions,
                st.text(max_size=5),
                st.dictionaries(st.integers(0, 20), st.integers(0, 2**62)),
                st.just({}),
            ),
        )
    )
    def test_positions_survive_their_checkpoint(self, positions: Positions) -> None:
        assert plan.from_json(json.loads(json.dumps(plan.to_json(positions)))) == positions

    @pytest.mark.parametrize(
        "text",
        [
            "null",
            "[]",
            "5",
            '"orders"',
            '{"orders": 5}',
            '{"orders": {}}',
            '{"orders": {"0": 5}}',
            '{"orders": {"id": "a", "0": 5, "pending": "3"}}',
            '{"orders": {"id": "a", "0": 5, "pending": {"1": "3"}}}',
            '{"orders": {"id": "a", "0": 5, "pending": {"0": "5"}}}',
            '{"orders": {"id": "a", "0": 5, "pending": {"0": 3}}}',
            '{"orders": {"id": "a", "0": 5, "pending": {"0": "3,2"}}}',
            '{"orders": {"id": 7, "0": 5}}',
            '{"orders": {"id": "a", "0": "5"}}',
            '{"orders": {"id": "a", "0": -1}}',
            '{"orders": {"id": "a", "0": 1.0}}',
            '{"orders": {"id": "a", "0": true}}',
            '{"orders": {"id": "a", "0": null}}',
            '{"orders": {"id": "a", "x": 5}}',
            '{"orders": {"id": "a", "-1": 5}}',
            '{"orders": {"id": "a", "01": 5}}',
            '{"orders": {"id": "a", "0": 9223372036854775808}}',
        ],
    )
    def test_nothing_malformed_is_tolerated(self, text: str) -> None:
        with pytest.raises(InvalidRequest, match="malformed offset in the checkpoint"):
            plan.from_json(json.loads(text))

    def test_edges_are_those_of_each_partition(self) -> None:
        now = world(a=[(3, 9), (0, 0)], b=[(1, 2)])
        assert plan.resolved(now, Edge.EARLIEST, option="x") == at(a={0: 3, 1: 0}, b={0: 1})
        assert plan.resolved(now, Edge.LATEST, option="x") == at(a={0: 9, 1: 0}, b={0: 2}) == plan.ends(now)

    def test_offsets_may_name_edges(self) -> None:
        place = TopicOffsets({"a": {0: EARLIEST, 1: LATEST, 2: 5}})
        assert plan.resolved(world(a=[(3, 9), (3, 9), (3, 9)]), place, option="x") == at(a={0: 3, 1: 9, 2: 5})

    def test_a_time_finds_nothing_outside_of_the_log(self) -> None:
        found = plan.resolved(world(a=[(3, 9), (3, 9)]), Timestamp("now"), option="x", at_time={"a": [0, 20]})
        assert found == at(a={0: 3, 1: 9})

    @pytest.mark.parametrize(
        ("by_topic", "said"),
        [
            ({"a": {0: 1}}, "startingOffsets lacks a-1"),
            ({"a": {0: 1, 1: 1, 2: 1}}, "a-2"),
            ({"a": {0: 1, 1: 1}, "b": {0: 1}}, "b"),
            ({"b": {0: 1}}, "b"),
        ],
    )
    def test_offsets_name_every_partition_that_is_read_and_no_other(
        self, by_topic: dict[str, dict[int, int]], said: str
    ) -> None:
        with pytest.raises((InvalidRequest, InvalidConfig)) as caught:
            plan.resolved(world(a=[(0, 9), (0, 9)]), TopicOffsets(by_topic), option="startingOffsets")
        assert said in str(caught.value)
        assert "startingOffsets" in str(caught.value)

    def test_a_group_goes_on_where_it_stands(self) -> None:
        now = world(a=[(0, 9), (2, 9)], b=[(0, 9)])
        group = {TopicPartition("a", 0): 4, TopicPartition("other", 0): 1}
        assert plan.committed(now, group, Edge.LATEST) == at(a={0: 4, 1: 2}, b={0: 9})
        assert plan.committed(now, group, Edge.EARLIEST) == at(a={0: 4, 1: 2}, b={0: 0})

    def test_positions_change_only_where_something_is_read(self) -> None:
        now = world(a=[(0, 9), (0, 9)])
        read = [OffsetRange("a", 0, 4, 6), OffsetRange("a", 1, 3, 3)]
        assert plan.advanced(at(a={0: 4}), read, now) == at(a={0: 6})
        assert plan.advanced({}, read[1:], now) == {}

    def test_nothing_is_kept_of_a_topic_that_was_made_again(self) -> None:
        old = {"a": TopicPositions("old", {0: 4, 1: 9})}
        assert plan.advanced(old, [OffsetRange("a", 0, 0, 2)], world(a=[(0, 9)])) == at(a={0: 2})

    def test_whoever_has_passed_the_end_stays_there(self) -> None:
        assert plan.latest_of(at(a={0: 9, 1: 0}), at(a={0: 5, 1: 5})) == at(a={0: 9, 1: 5})


class TestWhatThereIsToRead:
    def test_it_reaches_from_the_positions_to_the_end(self) -> None:
        found = plan.backlog(at(a={0: 4, 1: 9}), world(a=[(0, 9), (0, 9)], b=[(0, 2)]))
        assert found == ([OffsetRange("a", 0, 4, 9), OffsetRange("b", 0, 0, 2)], [])

    def test_a_partition_that_was_added_is_read_from_its_beginning(self) -> None:
        assert plan.backlog(at(a={0: 9}), world(a=[(0, 9), (0, 3)])).ranges == [OffsetRange("a", 1, 0, 3)]

    def test_what_came_after_the_target_is_not_read(self) -> None:
        target = at(a={0: 6})
        now = world(a=[(0, 9), (0, 9)], b=[(0, 9)])
        assert plan.backlog(at(a={0: 4}), now, target=target) == ([OffsetRange("a", 0, 4, 6)], [])
        assert plan.backlog(at(a={0: 8}), now, target=target) == ([], [])

    def test_a_topic_that_was_made_again_after_the_target_is_not_read(self) -> None:
        target = {"a": TopicPositions("old", {0: 6})}
        found = plan.backlog({"a": TopicPositions("old", {0: 2})}, world(a=[(0, 9)]), target=target)
        assert found.ranges == []
        assert reasons(found) == ["topic a was deleted and created again"]

    def test_what_retention_took_is_a_loss(self) -> None:
        found = plan.backlog(at(a={0: 4}), world(a=[(6, 9)]))
        assert found.ranges == [OffsetRange("a", 0, 6, 9)]
        assert reasons(found) == ["offsets 4 to 5 of a-0 are gone, its log begins at 6"]

    def test_a_topic_that_comes_late_and_has_lost_its_beginning_is_a_loss(self) -> None:
        found = plan.backlog({}, world(a=[(6, 9)]))
        assert reasons(found) == ["offsets 0 to 5 of a-0 are gone, its log begins at 6"]

    def test_a_topic_that_is_gone_is_a_loss(self) -> None:
        assert reasons(plan.backlog(at(a={0: 4}), {})) == ["topic a was deleted"]

    def test_a_topic_that_was_made_again_is_a_loss_and_read_from_its_beginning(self) -> None:
        found = plan.backlog({"a": TopicPositions("old", {0: 4})}, world(a=[(0, 2)]))
        assert reasons(found) == ["topic a was deleted and created again"]
        assert found.ranges == [OffsetRange("a", 0, 0, 2)]

    def test_a_log_that_is_shorter_than_it_was_is_a_loss(self) -> None:
        found = plan.backlog(at(a={0: 9}), world(a=[(0, 5)]))
        assert found.ranges == []
        assert reasons(found) == ["a-0 is to be read to 9, but ends at 5"]

    def test_between_two_positions_lies_what_they_name(self) -> None:
        found = plan.between(at(a={0: 4, 1: 3}), at(a={0: 6, 1: 3, 2: 5}, b={0: 1}), world(a=[(0, 9)] * 3, b=[(0, 9)]))
        assert found == ([OffsetRange("a", 0, 4, 6), OffsetRange("a", 2, 0, 5), OffsetRange("b", 0, 0, 1)], [])

    def test_between_two_positions_losses_are_found(self) -> None:
        start, end = at(a={0: 2, 1: 2, 2: 9}, b={0: 0}), at(a={0: 6, 1: 8, 2: 5}, b={0: 4})
        found = plan.between(start, end, world(a=[(4, 9), (0, 5), (0, 9)]))
        assert found.ranges == [OffsetRange("a", 0, 4, 6), OffsetRange("a", 1, 2, 5)]
        assert reasons(found) == [
            "a-2 is to be read from 9, but ends at 5",
            "offsets 2 to 3 of a-0 are gone, its log begins at 4",
            "a-1 is to be read to 8, but ends at 5",
            "topic b was deleted",
        ]

    def test_all_of_a_range_may_be_lost(self) -> None:
        found = plan.between(at(a={0: 2}), at(a={0: 6}), world(a=[(9, 9)]))
        assert found.ranges == []
        assert reasons(found) == ["offsets 2 to 5 of a-0 are gone, its log begins at 9"]

    def test_a_range_of_a_topic_that_was_made_again_is_lost(self) -> None:
        old = {"a": TopicPositions("old", {0: 6})}
        found = plan.between({}, old, world(a=[(0, 9)]))
        assert (found.ranges, reasons(found)) == ([], ["topic a was deleted and created again"])

    def test_the_step_to_a_topic_that_was_made_again_is_read_from_its_beginning(self) -> None:
        found = plan.between({"a": TopicPositions("old", {0: 6})}, at(a={0: 2}), world(a=[(0, 9)]))
        assert found == ([OffsetRange("a", 0, 0, 2)], [])

    def test_a_topic_of_which_nothing_is_wanted_may_be_gone(self) -> None:
        assert plan.between(at(a={0: 6}), at(a={0: 6}), {}) == ([], [])

    def test_a_partition_that_never_was_is_an_error(self) -> None:
        with pytest.raises(PartitionNotFound):
            plan.between({}, at(a={5: 6}), world(a=[(0, 9)]))

    def test_losses_are_one_sentence(self) -> None:
        losses = plan.backlog(at(**{f"t{number}": {0: 1} for number in range(9)}), {}).losses
        text = str(DataLost(losses))
        assert text.startswith(
            "data lost: topic t0 was deleted; topic t1 was deleted; topic t2 was deleted; and 6 more"
        )
        assert "failOnDataLoss=false" in text
        assert isinstance(DataLost(losses), GoQueueError)

    @given(
        st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=4),
        st.lists(st.integers(0, 40), max_size=4),
    )
    def test_every_offset_is_read_or_lost_or_not_there_yet(
        self, bounds: list[tuple[int, int]], starts: list[int]
    ) -> None:
        now = world(a=[(start, start + length) for start, length in bounds])
        positions = at(a=dict(enumerate(starts[: len(bounds)])))
        found = plan.backlog(positions, now)
        for partition, (first, last, _) in now["a"].partitions.items():
            start = positions["a"].offsets.get(partition, 0)
            read = [
                offset for one in found.ranges if one.partition == partition for offset in range(one.start, one.end)
            ]
            assert read == list(range(max(start, first), last))
            is_lost = any(loss.partition == partition for loss in found.losses)
            assert is_lost == (start > last or (start < first and start < last))


class TestHowMuchOfItNow:
    @given(some_ranges, st.integers(1, 500), st.integers(0, 20))
    def test_a_limit_of_offsets_is_used_up_and_kept(self, ahead: list[OffsetRange], limit: int, turn: int) -> None:
        admitted = plan.limit_offsets(ahead, limit, turn=turn)
        lengths = [one.end - one.start for one in admitted]
        assert sum(lengths) == min(limit, sum(one.end - one.start for one in ahead))
        assert [one[:3] for one in admitted] == [one[:3] for one in ahead]
        assert all(got.end <= asked.end for got, asked in zip(admitted, ahead, strict=True))
        if limit >= len(ahead):
            assert all(lengths)

    @given(some_ranges, st.integers(1, 5))
    def test_where_there_are_too_many_they_take_turns(self, ahead: list[OffsetRange], limit: int) -> None:
        served: set[int] = set()
        for turn in range(len(ahead)):
            served |= {one.partition for one in plan.limit_offsets(ahead, limit, turn=turn) if one.start < one.end}
        assert served == {one.partition for one in ahead}

    @pytest.mark.parametrize(
        ("lengths", "limit", "turn", "shares"),
        [
            ([100, 100, 100], 4, 0, [2, 1, 1]),
            ([100, 100, 100], 4, 1, [1, 2, 1]),
            ([1, 2, 2], 4, 0, [1, 2, 1]),
            ([1, 2, 2], 5, 0, [1, 2, 2]),
            ([5, 5, 5], 2, 1, [1, 0, 1]),
        ],
    )
    def test_what_is_left_over_goes_round(self, lengths: list[int], limit: int, turn: int, shares: list[int]) -> None:
        ahead = [OffsetRange("t", partition, 0, length) for partition, length in enumerate(lengths)]
        assert [one.end for one in plan.limit_offsets(ahead, limit, turn=turn)] == shares

    def test_a_limit_is_spread_in_proportion(self) -> None:
        ahead = [OffsetRange("t", 0, 0, 900), OffsetRange("t", 1, 0, 100), OffsetRange("t", 2, 0, 2)]
        ends = [one.end for one in plan.limit_offsets(ahead, 100, turn=0)]
        assert sum(ends) == 100
        assert 85 <= ends[0] <= 90
        assert 9 <= ends[1] <= 12
        assert ends[2] >= 1

    @given(ranges_in_pieces(), st.integers(1, 4_000), st.integers(0, 20))
    def test_a_limit_of_bytes_is_kept_and_cuts_where_pieces_begin(
        self, cut: tuple[list[OffsetRange], list[list[Piece]]], limit: int, turn: int
    ) -> None:
        ahead, pieces = cut
        admitted = plan.limit_bytes(ahead, pieces, limit, turn=turn)
        taken = []
        for one, asked, parts in zip(admitted, ahead, pieces, strict=True):
            assert one[:3] == asked[:3]
            assert one.end in [part.first_offset for part in parts] or one.end == asked.end
            taken += [part.size_bytes for part in parts if part.first_offset < one.end]
        assert sum(taken) <= limit or len(taken) == 1 or sum(taken[1:]) == 0 or sorted(taken)[-2] == 0
        first = admitted[turn % len(ahead)]
        assert first.start < first.end

    @given(ranges_in_pieces(), st.integers(1, 1_000))
    def test_under_a_limit_of_bytes_all_is_read_in_the_end(
        self, cut: tuple[list[OffsetRange], list[list[Piece]]], limit: int
    ) -> None:
        ahead, pieces = cut
        for turn in range(100):
            admitted = plan.limit_bytes(ahead, pieces, limit, turn=turn)
            left = [
                (asked._replace(start=one.end), [part for part in parts if part.first_offset >= one.end])
                for one, asked, parts in zip(admitted, ahead, pieces, strict=True)
                if one.end < asked.end
            ]
            if not left:
                return
            ahead, pieces = [one for one, _ in left], [parts for _, parts in left]
        raise AssertionError("it does not end")

    def test_a_window_is_wide_enough_for_the_limit(self) -> None:
        one = OffsetRange("t", 0, 10, 1_000_000)
        assert plan.window(one, Bounds(0, 1_000_000, 100_000_000), MIB).end == 10 + 4 * MIB // 100
        assert plan.window(one, Bounds(0, 1_000_000, 100_000_000), 1).end == 10 + 1_000
        assert plan.window(one._replace(end=20), Bounds(0, 20, 0), MIB).end == 20

    @given(
        st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=3), min_size=1, max_size=6),
        st.none() | st.integers(1, 60),
    )
    def test_a_stream_reads_each_offset_once_and_in_order(self, arrivals: list[list[int]], limit: int | None) -> None:
        """Topics grow and get partitions while they are read, micro-batch by micro-batch, through checkpoints."""
        ends: dict[int, int] = {}
        read: dict[int, list[int]] = {}
        positions: Positions = plan.resolved(world(t=[]), Edge.LATEST, option="x")
        for turn, arrived in enumerate([*arrivals, *[[0]] * 200]):
            for partition, count in enumerate(arrived):
                ends[partition] = ends.get(partition, 0) + count
            now = world(t=[(0, ends[partition]) for partition in sorted(ends)])
            judged = plan.backlog(positions, now)
            assert judged.losses == []
            ahead = judged.ranges if limit is None else plan.limit_offsets(judged.ranges, limit, turn=turn)
            end = plan.from_json(json.loads(json.dumps(plan.to_json(plan.advanced(positions, ahead, now)))))
            assert (end == positions) == (not judged.ranges)
            for one in plan.between(positions, end, now).ranges:
                read.setdefault(one.partition, []).extend(range(one.start, one.end))
            positions = end
        assert read == {partition: list(range(end)) for partition, end in ends.items() if end}


class TestWhoReadsWhat:
    @given(ranges_in_pieces(), st.integers(1, 20), st.integers(1, 40))
    def test_tasks_hold_each_range_once_and_in_order(
        self, cut: tuple[list[OffsetRange], list[list[Piece]]], count: int, least: int
    ) -> None:
        asked, pieces = cut
        parts = [part for one, each in zip(asked, pieces, strict=True) for part in plan.cut(one, each)]
        parts = plan.at_least(parts, least)
        tasks = plan.pack(parts, count)
        assert len(tasks) == min(count, len(parts))
        assert all(tasks)
        joined: list[OffsetRange] = []
        for one in (one for task in tasks for one in task):
            assert one.start < one.end
            if joined and joined[-1][:2] == one[:2]:
                assert joined[-1].end == one.start
                joined[-1] = joined[-1]._replace(end=one.end)
            else:
                joined.append(one)
        assert joined == asked
        offset_count = sum(one.end - one.start for one in asked)
        assert len(parts) >= min(least, offset_count)

    @given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(1, 10))
    def test_tasks_come_out_even(self, sizes: list[int], count: int) -> None:
        sized = [Sized(OffsetRange("t", index, 0, 1), size) for index, size in enumerate(sizes)]
        by_partition = dict(enumerate(sizes))
        if len(sizes) >= 4 * count:
            for task in plan.pack(sized, count):
                filled = sum(by_partition[one.partition] for one in task)
                assert filled <= sum(sizes) / count + 2 * max(sizes)

    def test_ranges_that_continue_each_other_are_one(self) -> None:
        parts = [Sized(OffsetRange("t", 0, start, start + 5), 10) for start in (0, 5, 10, 20)]
        assert plan.pack(parts, 1) == [[OffsetRange("t", 0, 0, 15), OffsetRange("t", 0, 20, 25)]]

    def test_ranges_of_two_partitions_stay_two(self) -> None:
        parts = [Sized(OffsetRange("t", 0, 0, 5), 10), Sized(OffsetRange("t", 1, 5, 9), 10)]
        assert plan.pack(parts, 1) == [[part.range for part in parts]]

    def test_equal_parts_make_equal_tasks(self) -> None:
        parts = [Sized(OffsetRange("t", partition, 0, 5), 10) for partition in range(8)]
        assert [len(task) for task in plan.pack(parts, 4)] == [2, 2, 2, 2]

    def test_one_offset_is_not_halved(self) -> None:
        parts = [Sized(OffsetRange("t", 0, 4, 5), 10)]
        assert plan.at_least(parts, 5) == parts

    def test_nothing_is_no_task(self) -> None:
        assert plan.pack([], 3) == []
        assert plan.at_least([], 3) == []

    @pytest.mark.parametrize(
        ("total_bytes", "count"),
        [(0, 1), (1, 1), (4 * MIB, 1), (5 * MIB, 2), (100 * MIB, 2), (128 * MIB, 2), (129 * MIB, 4), (300 * MIB, 6)],
    )
    def test_tasks_are_worth_their_start_and_full_rounds(self, total_bytes: int, count: int) -> None:
        assert plan.task_count(total_bytes, parallelism=2, max_bytes=64 * MIB) == count

    def test_so_many_tasks_at_least(self) -> None:
        assert plan.task_count(0, parallelism=2, max_bytes=MIB, min_count=7) == 7

    @given(st.integers(0, 10**12), st.integers(1, 64), st.integers(1, 10**9))
    def test_tasks_are_not_too_large(self, total_bytes: int, parallelism: int, max_bytes: int) -> None:
        count = plan.task_count(total_bytes, parallelism=parallelism, max_bytes=max_bytes)
        assert total_bytes <= count * max_bytes
        assert count == 1 or count <= parallelism or total_bytes > (count - parallelism) * max_bytes

    def test_bytes_are_estimated_from_those_of_the_whole(self) -> None:
        assert plan.estimated_bytes(OffsetRange("t", 0, 50, 60), Bounds(0, 100, 1_000)) == 100
        assert plan.estimated_bytes(OffsetRange("t", 0, 0, 0), Bounds(0, 0, 0)) == 0

    def test_pieces_that_are_off_change_nothing(self) -> None:
        one = OffsetRange("t", 0, 10, 20)
        assert plan.cut(one, []) == [Sized(one, 0)]
        assert [part.range[2:] for part in plan.cut(one, [Piece(5, 1), Piece(15, 1), Piece(30, 1)])] == [
            (10, 15),
            (15, 20),
        ]


class TestFilters:
    conditions = st.lists(
        st.one_of(
            st.builds(
                Condition,
                st.sampled_from(["offset", "partition"]),
                st.sampled_from(["=", ">", ">=", "<", "<="]),
                st.integers(-5, 60),
            ),
            st.builds(
                Condition,
                st.sampled_from(["offset", "partition"]),
                st.just("in"),
                st.lists(st.integers(-5, 60), max_size=4).map(tuple),
            ),
            st.builds(Condition, st.just("topic"), st.just("="), st.sampled_from(["t", "u"])),
            st.builds(Condition, st.just("topic"), st.just("in"), st.sampled_from([(), ("t", "u"), ("u",)])),
        ),
        max_size=3,
    )

    @given(ranges, conditions)
    def test_conditions_become_ranges(self, asked: list[OffsetRange], conditions: list[Condition]) -> None:
        def meets(topic: str, partition: int, offset: int) -> bool:
            row = {"topic": topic, "partition": partition, "offset": offset}
            for column, operator, value in conditions:
                found = row[column]
                if not {
                    "=": lambda f, v: f == v,
                    "in": lambda f, v: f in v,
                    ">": lambda f, v: f > v,
                    ">=": lambda f, v: f >= v,
                    "<": lambda f, v: f < v,
                    "<=": lambda f, v: f <= v,
                }[operator](found, value):
                    return False
            return True

        wanted = [
            (one.topic, one.partition, offset)
            for one in asked
            for offset in range(one.start, one.end)
            if meets(one.topic, one.partition, offset)
        ]
        found = plan.narrowed(asked, conditions)
        assert [(one.topic, one.partition, at) for one in found for at in range(one.start, one.end)] == wanted

    @pytest.mark.parametrize(
        "condition",
        [
            Condition("offset", "=", None),
            Condition("offset", "in", (1, None)),
            Condition("offset", ">", 2.5),
            Condition("offset", "=", True),
            Condition("partition", "=", "0"),
            Condition("topic", "=", 5),
            Condition("topic", ">", "a"),
            Condition("key", "=", b"k"),
            Condition("timestamp", ">", 5),
        ],
    )
    def test_what_is_not_understood_narrows_nothing(self, condition: Condition) -> None:
        asked = [OffsetRange("t", 0, 0, 9)]
        assert plan.narrowed(asked, [condition]) == asked
        assert plan.time_bounds([condition]) == (None, None)

    @given(
        st.lists(st.tuples(st.sampled_from(["=", ">", ">=", "<", "<="]), st.integers(-3, 3)), max_size=3),
        st.integers(-5_000, 5_000),
    )
    def test_times_are_those_that_spark_sees(self, asked: list[tuple[str, int]], stamped: int) -> None:
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        conditions = [Condition("timestamp", operator, epoch + timedelta(microseconds=us)) for operator, us in asked]
        seen = stamped // 1_000
        meets = all(
            {"=": seen == us, ">": seen > us, ">=": seen >= us, "<": seen < us, "<=": seen <= us}[operator]
            for operator, us in asked
        )
        start, end = plan.time_bounds(conditions)
        assert ((start is None or start <= stamped) and (end is None or stamped < end)) == meets

    @pytest.mark.parametrize(
        ("operator", "bounds"),
        [
            ("=", (5_000, 6_000)),
            (">", (6_000, None)),
            (">=", (5_000, None)),
            ("<", (None, 5_000)),
            ("<=", (None, 6_000)),
        ],
    )
    def test_a_moment_of_spark_is_a_thousand_of_ours(
        self, operator: str, bounds: tuple[int | None, int | None]
    ) -> None:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=5)
        assert plan.time_bounds([Condition("timestamp", operator, moment)]) == bounds

    def test_a_time_without_a_zone_narrows_nothing(self) -> None:
        assert plan.time_bounds([Condition("timestamp", ">", datetime(2026, 1, 1))]) == (None, None)

    def test_ranges_are_clipped_to_offsets_of_their_partition(self) -> None:
        asked = [OffsetRange("t", 0, 0, 9), OffsetRange("t", 1, 0, 9), OffsetRange("t", 2, 0, 9)]
        found = plan.clipped(asked, starts={"t": [2, 9, 0]}, ends={"t": [5, 9, 20]})
        assert found == [OffsetRange("t", 0, 2, 5), OffsetRange("t", 2, 0, 9)]
        assert plan.clipped(asked) == asked


class TestPending:
    """What stands before a position and is still to come."""

    def test_a_checkpoint_keeps_it_as_text(self) -> None:
        positions = {"a": TopicPositions("x", {0: 30, 1: 5}, {0: ((10, 11), (17, 20))})}
        text = '{"a": {"id": "x", "0": 30, "1": 5, "pending": {"0": "10,17-19"}}}'
        assert json.dumps(plan.to_json(positions)) == text
        assert plan.from_json(json.loads(text)) == positions

    def test_a_group_goes_on_after_the_last_that_it_has_done(self) -> None:
        group = {TopicPartition("a", 0): 10, TopicPartition("a", 1): 4}
        done = {TopicPartition("a", 0): ((11, 15), (17, 1_000)), TopicPartition("a", 1): ((2, 4),)}
        found = plan.committed(world(a=[(0, 2_000), (0, 9)]), group, Edge.EARLIEST, done)
        assert found["a"].offsets == {0: 1_000, 1: 4}
        assert found["a"].pending == {0: ((10, 11), (15, 17))}

    def test_what_is_far_from_each_other_is_read_apart_and_what_is_close_in_one(self) -> None:
        start = {"a": TopicPositions("id-a", {0: 9_000}, {0: ((10, 11), (15, 17), (5_000, 5_001))})}
        end = at(a={0: 9_100})
        found = plan.between(start, end, world(a=[(0, 9_100)]))
        assert [one[2:] for one in found.ranges] == [(10, 17), (5_000, 5_001), (9_000, 9_100)]
        assert plan.skipped(start, end) == {TopicPartition("a", 0): ((11, 15),)}

    def test_what_retention_took_of_it_is_lost(self) -> None:
        start = {"a": TopicPositions("id-a", {0: 20}, {0: ((3, 5),)})}
        found = plan.between(start, at(a={0: 20}), world(a=[(10, 20)]))
        assert found.ranges == []
        assert "offsets 3 to 4 of a-0 are gone" in found.losses[0].reason

    def test_another_topic_of_that_name_has_nothing_of_it(self) -> None:
        start = {"a": TopicPositions("old", {0: 20}, {0: ((3, 5),)})}
        found = plan.matured(start, at(a={0: 7}), {})
        assert found == at(a={0: 7})
        assert [one[2:] for one in plan.between(start, found, world(a=[(0, 7)])).ranges] == [(0, 7)]

    def test_a_batch_takes_no_more_of_it_than_it_may(self) -> None:
        start = {"a": TopicPositions("id-a", {0: 20, 1: 20}, {0: ((3, 8),), 1: ((3, 8),)})}
        found = plan.matured(start, start, {}, limit=7)
        assert found["a"].pending == {1: ((5, 8),)}

    def test_an_end_before_it_leaves_it_out(self) -> None:
        start = {"a": TopicPositions("id-a", {0: 20}, {0: ((3, 8), (10, 11))})}
        assert plan.pending_before(start, at(a={0: 5}))["a"].pending == {0: ((3, 5),)}

    @given(st.data())
    def test_each_offset_is_read_once_when_it_does_not_wait_any_more(self, data: st.DataObject) -> None:
        """Micro-batch after micro-batch, with offsets that stop waiting at any time."""
        ends_at = sorted(data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=5)))
        due_in = {offset: data.draw(st.integers(0, 6)) for offset in data.draw(st.sets(st.integers(0, 59)))}
        name = TopicPartition("a", 0)
        positions: Positions = at(a={0: 0})
        read: list[int] = []
        for turn, end_offset in enumerate([*ends_at, *[ends_at[-1]] * 8]):
            waiting = union((offset, offset + 1) for offset, due in due_in.items() if due > turn)
            end = plan.matured(positions, at(a={0: end_offset}), {name: waiting})
            end = plan.from_json(json.loads(json.dumps(plan.to_json(end))))
            skipped = {o for first, last in plan.skipped(positions, end).get(name, ()) for o in range(first, last)}
            found = plan.between(positions, end, world(a=[(0, 60)]))
            now = [o for one in found.ranges for o in range(one.start, one.end) if o not in skipped]
            assert not [o for o in now if due_in.get(o, 0) > turn]
            read += now
            positions = end
        assert sorted(read) == list(range(ends_at[-1]))
