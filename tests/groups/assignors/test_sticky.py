"""The sticky assignor is as even as can be, and moves no more than it must."""

from collections import Counter
from collections.abc import Mapping
from itertools import product
from math import prod
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from goqueue.groups.assignors import sticky
from goqueue.names import TopicPartition

Topics = dict[str, tuple[str, ...]]
Owners = dict[TopicPartition, str]


def cost(topics: Topics, dealt: Mapping[TopicPartition, str], owners: Owners) -> tuple[int, int]:
    """How uneven, then how many partitions moved away from one who still wants them."""
    unevenness = sum(count * count for count in Counter(dealt.values()).values())
    moved = sum(
        taker != owners[partition]
        for partition, taker in dealt.items()
        if partition in owners and partition.topic in topics.get(owners[partition], ())
    )
    return unevenness, moved


def best(topics: Topics, partition_counts: Mapping[str, int], owners: Owners) -> tuple[int, int]:
    """The cost of the best of all ways there are."""
    partitions = [TopicPartition(topic, number) for topic, count in partition_counts.items() for number in range(count)]
    takers = [[member for member in topics if one.topic in topics[member]] for one in partitions]
    wanted = [(one, choice) for one, choice in zip(partitions, takers, strict=True) if choice]
    return min(
        cost(topics, {one: taker for (one, _), taker in zip(wanted, way, strict=True)}, owners)
        for way in product(*(choice for _, choice in wanted))
    )


def dealt_by_sticky(topics: Topics, partition_counts: Mapping[str, int], owners: Owners) -> dict[TopicPartition, str]:
    hands = sticky.assign(topics, partition_counts, owners)
    assert hands.keys() == topics.keys()
    dealt = {partition: member for member, partitions in hands.items() for partition in partitions}
    assert len(dealt) == sum(map(len, hands.values())), "a partition with two owners"
    for partition, member in dealt.items():
        assert partition.topic in topics[member]
        assert partition.partition in range(partition_counts[partition.topic])
    wanted = {topic for member_topics in topics.values() for topic in member_topics}
    assert len(dealt) == sum(count for topic, count in partition_counts.items() if topic in wanted)
    return dealt


MEMBERS = ("a", "b", "c", "d")
TOPICS = ("t", "u", "v")
WAYS_MAX = 1_500


def ways(topics: Topics, partition_counts: Mapping[str, int]) -> int:
    """How many there are to deal out everything that somebody wants."""
    takers = Counter(topic for wanted in topics.values() for topic in wanted)
    return prod(max(1, takers[topic]) ** count for topic, count in partition_counts.items())


@st.composite
def situations(draw: st.DrawFn) -> tuple[Topics, dict[str, int], Owners]:
    members = draw(st.lists(st.sampled_from(MEMBERS), min_size=1, unique=True))
    topics = {member: tuple(draw(st.lists(st.sampled_from(TOPICS), min_size=1, unique=True))) for member in members}
    counts = {topic: draw(st.integers(0, 5)) for topic in TOPICS}
    while ways(topics, counts) > WAYS_MAX:
        topic = max(counts, key=lambda topic: counts[topic])
        counts[topic] -= 1
    partitions = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
    owners = {one: owner for one in partitions if (owner := draw(st.sampled_from((None, "gone", *MEMBERS))))}
    return topics, counts, owners


THE_SECOND_SWEEP_HAS_WORK = (
    {"a": ("t",), "b": ("t", "u"), "c": ("t", "u"), "d": ("t", "u")},
    {"t": 2, "u": 3},
    {
        **{TopicPartition("t", number): "d" for number in range(2)},
        **{TopicPartition("u", number): "c" for number in range(3)},
    },
)


@given(situations())
@example(THE_SECOND_SWEEP_HAS_WORK)
def test_nothing_is_more_even_and_nothing_as_even_moves_less(situation: tuple[Topics, dict[str, int], Owners]) -> None:
    topics, counts, owners = situation

    dealt = dealt_by_sticky(topics, counts, owners)

    assert cost(topics, dealt, owners) == best(topics, counts, owners)


@given(situations())
def test_what_is_as_good_as_can_be_is_left_alone(situation: tuple[Topics, dict[str, int], Owners]) -> None:
    topics, counts, owners = situation
    settled = dealt_by_sticky(topics, counts, owners)

    assert dealt_by_sticky(topics, counts, settled) == settled


@pytest.mark.parametrize(
    ("topics", "counts", "owners", "expected"),
    [
        ({"a": ("t",)}, {"t": 3}, {}, {"a": "t0 t1 t2"}),
        ({"a": ("t",), "b": ("t",)}, {"t": 4}, {"a": "t0 t1 t2 t3"}, {"a": "t0 t1", "b": "t2 t3"}),
        ({"a": ("t",), "b": ("t",)}, {"t": 3}, {"b": "t0 t1 t2"}, {"a": "t2", "b": "t0 t1"}),
        ({"b": ("t",)}, {"t": 2}, {"a": "t0", "b": "t1"}, {"b": "t0 t1"}),
        ({"a": ("t",), "b": ("u",)}, {"t": 3, "u": 1}, {}, {"a": "t0 t1 t2", "b": "u0"}),
        # a chain: c can only take u, b gives it and takes t from a
        (
            {"a": ("t",), "b": ("t", "u"), "c": ("u",)},
            {"t": 2, "u": 1},
            {"a": "t0 t1", "b": "u0"},
            {"a": "t0", "b": "t1", "c": "u0"},
        ),
        # a could take two from b and one from c; that is as even, but not as still
        (
            {"a": ("t", "u"), "b": ("t",), "c": ("u",)},
            {"t": 4, "u": 4},
            {"b": "t0 t1 t2 t3", "c": "u0 u1 u2 u3"},
            {"a": "t3 u3", "b": "t0 t1 t2", "c": "u0 u1 u2"},
        ),
        ({"a": ("gone",)}, {"t": 3}, {}, {"a": ""}),
        ({"a": ("t",)}, {"t": 0}, {}, {"a": ""}),
        ({}, {"t": 3}, {}, {}),
    ],
)
def test_small_tables(topics: Topics, counts: dict[str, int], owners: dict[str, str], expected: dict[str, str]) -> None:
    before = {TopicPartition(one[0], int(one[1:])): member for member, own in owners.items() for one in own.split()}

    hands = sticky.assign(topics, counts, before)

    shown = {
        member: " ".join(f"{topic}{number}" for topic, number in sorted(partitions))
        for member, partitions in hands.items()
    }
    assert shown == expected


def test_a_new_member_among_a_hundred_costs_nobody_more_than_its_share() -> None:
    topics: Topics = {f"m{number:03}": ("t", "u") for number in range(100)}
    counts = {"t": 700, "u": 300}
    before = dealt_by_sticky(topics, counts, {})

    after = dealt_by_sticky({**topics, "new": ("t", "u")}, counts, before)

    assert set(Counter(after.values()).values()) <= {9, 10}
    assert cost({**topics, "new": ("t", "u")}, after, before)[1] == Counter(after.values())["new"]


@pytest.mark.parametrize("seed", range(5))
def test_many_members_with_topics_of_their_own_end_where_nobody_could_give_to_one_with_two_less(seed: int) -> None:
    random = Random(seed)
    names = [f"t{number}" for number in range(12)]
    topics = {f"m{number}": tuple(random.sample(names, random.randint(1, 4))) for number in range(40)}
    counts = {name: random.randint(0, 30) for name in names}
    partitions = [TopicPartition(topic, number) for topic in names for number in range(counts[topic])]
    owners = {one: random.choice(list(topics)) for one in partitions}

    dealt = dealt_by_sticky(topics, counts, owners)

    held = Counter(dict.fromkeys(topics, 0)) + Counter(dealt.values())
    for partition, member in dealt.items():
        for other, wanted in topics.items():
            if partition.topic in wanted:
                assert held[member] <= held[other] + 1


def test_who_asks_again_gets_the_same_whatever_the_order_of_the_members() -> None:
    topics: Topics = {"a": ("t", "u"), "b": ("u",), "c": ("t",), "d": ("t", "u", "v")}
    counts = {"t": 7, "u": 5, "v": 3}

    first = dealt_by_sticky(topics, counts, {})

    assert dealt_by_sticky(dict(reversed(topics.items())), dict(reversed(counts.items())), {}) == first
