"""An assignor is found by its name, and each deals out everything that is wanted, once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.groups.assignors.choice import ASSIGNORS, choose
from goqueue.names import TopicPartition

topic_sets = st.sets(st.sampled_from("tuvw"), min_size=1)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(
    topics=st.dictionaries(st.sampled_from("abcdefgh"), topic_sets),
    counts=st.dictionaries(st.sampled_from("tuv"), st.integers(0, 9)),
)
def test_every_partition_goes_to_exactly_one_who_wants_it(
    name: str, topics: dict[str, set[str]], counts: dict[str, int]
) -> None:
    hands = choose(name)(topics, counts, {})

    wanted = set[str]().union(*topics.values())
    assert hands.keys() == topics.keys()
    assert all(one.topic in topics[member] for member, own in hands.items() for one in own)
    assert sorted(one for own in hands.values() for one in own) == sorted(
        TopicPartition(topic, number) for topic in wanted for number in range(counts.get(topic, 0))
    )
