"""The range assignor deals out runs of neighbours, topic by topic."""

import pytest

from goqueue.groups.assignors import range as range_assignor


@pytest.mark.parametrize(
    ("topics", "counts", "expected"),
    [
        ({"a": "t", "b": "t"}, {"t": 4}, {"a": "t0 t1", "b": "t2 t3"}),
        ({"b": "t", "a": "t"}, {"t": 5}, {"a": "t0 t1 t2", "b": "t3 t4"}),
        ({"a": "t", "b": "t", "c": "t"}, {"t": 2}, {"a": "t0", "b": "t1", "c": ""}),
        ({"a": "tu", "b": "tu"}, {"t": 3, "u": 3}, {"a": "t0 t1 u0 u1", "b": "t2 u2"}),
        ({"a": "t", "b": "u"}, {"t": 2, "u": 1, "v": 9}, {"a": "t0 t1", "b": "u0"}),
        ({"a": "t"}, {"t": 0}, {"a": ""}),
        ({"a": "x"}, {}, {"a": ""}),
        ({}, {"t": 2}, {}),
    ],
)
def test_small_tables(topics: dict[str, str], counts: dict[str, int], expected: dict[str, str]) -> None:
    hands = range_assignor.assign(topics, counts, {})

    assert {member: " ".join(f"{one.topic}{one.partition}" for one in own) for member, own in hands.items()} == expected
