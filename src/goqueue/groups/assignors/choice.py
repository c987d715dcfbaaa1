"""The assignors by name."""

from collections.abc import Callable, Collection, Mapping

from goqueue.groups.assignors import range as range_assignor
from goqueue.groups.assignors import roundrobin, sticky
from goqueue.names import TopicPartition

Assign = Callable[
    [Mapping[str, Collection[str]], Mapping[str, int], Mapping[TopicPartition, str]], dict[str, list[TopicPartition]]
]
"""From the topics that each member wants, the partition counts and the owners now to what each member is to have.
Every partition whose topic some member wants goes to exactly one of these members."""

ASSIGNORS: Mapping[str, Assign] = {
    "sticky": sticky.assign,
    "range": range_assignor.assign,
    "roundrobin": roundrobin.assign,
}


def choose(name: str) -> Assign:
    """The assignor of that name, which is one of `ASSIGNORS`."""
    return ASSIGNORS[name]
