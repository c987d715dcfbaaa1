"""The round-robin assignor deals partitions out in turn, as Kafka's does."""

import pytest

from goqueue.groups.assignors import roundrobin


@pytest.mark.parametrize(
    ("topics", "counts", "expected"),
    [
        ({"a": "t", "b": "t"}, {"t": 4}, {"a": "t0 t2", "b": "t1 t3"}),
        ({"b": "t", "a": "t"}, {"t": 3}, {"a": "t0 t2", "b": "t1"}),
        ({"a": "tu", "b": "tu"}, {"t": 3, "u": 3}, {"a": "t0 t2 u1", "b": "t1 u0 u2"}),
        # the example in Kafka's RoundRobinAssignor
        ({"a": "t", "b": "tu", "c": "tuv"}, {"t": 1, "u": 2, "v": 3}, {"a": "t0", "b": "u0", "c": "u1 v0 v1 v2"}),
        ({"a": "t", "b": "u"}, {"t": 2, "u": 1, "v": 9}, {"a": "t0 t1", "b": "u0"}),
        ({"a": "t"}, {"t": 0}, {"a": ""}),
        ({"a": "x"}, {}, {"a": ""}),
        ({}, {"t": 2}, {}),
    ],
)
def test_small_tables(topics: dict[str, str], counts: dict[str, int], expected: dict[str, str]) -> None:
    hands = roundrobin.assign(topics, counts, {})

    assert {member: " ".join(f"{one.topic}{one.partition}" for one in own) for member, own in hands.items()} == expected
