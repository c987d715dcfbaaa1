"""A group as bytes: what survives a restart. Times that only count within one process are left out.

The bytes come from a disk and may hold anything, so they are checked before a group is made of them.
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec

from goqueue.groups.assignors.choice import ASSIGNORS
from goqueue.groups.member import ACKS, MODES, PROTOCOLS, STARTS, Member, validate_name
from goqueue.groups.rebalance import RebalanceStats
from goqueue.names import TopicPartition

Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Start = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(STARTS)})$")]
Ack = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(ACKS)})$")]
Mode = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(MODES)})$")]
Protocol = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(PROTOCOLS)})$")]
PARTITION_MAX = 100_000
PartitionCount = Annotated[int, msgspec.Meta(ge=0, le=PARTITION_MAX)]
"""Far more than a topic may have; a group of so many still fits into memory."""


class SavedMember(msgspec.Struct, frozen=True, omit_defaults=True):
    """One member; its session and its deadlines start again."""

    id: str
    client_id: str
    topics: tuple[str, ...]
    session_timeout_ms: Whole
    start: Start
    ack: Ack
    auto_commit: bool
    visibility_timeout_ms: Whole | None
    max_in_flight: Whole | None
    confirms_revocations: bool
    joined_at_ns: Whole
    last_heartbeat_ns: Whole
    generation: Whole
    auto_commit_interval_ms: Whole = 5_000
    fenced_below: Whole = 0
    assigned: tuple[TopicPartition, ...] = ()  # in the mode `partitioned`
    is_settled: bool = True
    target: tuple[TopicPartition, ...] = ()  # unless it is what is assigned
    to_revoke: tuple[TopicPartition, ...] = ()


class SavedGroup(msgspec.Struct, frozen=True):
    """Everything about a group."""

    name: str
    created_at_ns: Whole
    generation: Whole
    version: Whole
    state: str
    mode: Mode
    protocol: Protocol
    assignor: str
    ack: Ack
    partition_counts: dict[str, PartitionCount]
    members: list[SavedMember]  # in the order in which they joined
    expired: list[str]
    stats: RebalanceStats
    homes: list[tuple[TopicPartition, str]]  # of an eager rebalance under way


_DERIVED = ("assigned", "is_settled", "target", "to_revoke")
_SAME = tuple(name for name in SavedMember.__struct_fields__ if name not in _DERIVED)


def saved_member(member: Member, *, mode: str) -> SavedMember:
    """The member as it is; its partitions are left out in modes where every member has all."""
    return SavedMember(
        **{name: getattr(member, name) for name in _SAME},
        assigned=member.assigned if mode == "partitioned" else (),
        is_settled=member.is_settled,
        target=() if member.is_settled else tuple(sorted(member.target)),
        to_revoke=member.to_revoke,
    )


def restored_member(saved: SavedMember, *, now_ns: int) -> Member:
    """The member as it was, with a new session."""
    member = Member(**{name: getattr(saved, name) for name in _SAME}, heard_ns=now_ns)
    member.hold(saved.assigned)
    member.target = member.held if saved.is_settled else frozenset(saved.target)
    member.revoke(saved.to_revoke, now_ns=now_ns)
    return member


def decoded(raw: bytes) -> SavedGroup:
    """The decoded group. Raises `ValueError` or `InvalidRequest` if it is not valid."""
    saved = msgspec.msgpack.decode(raw, type=SavedGroup)
    validate_name(saved.name, "group")
    if saved.assignor not in ASSIGNORS:
        raise ValueError(f"there is no assignor {saved.assignor!r}")
    members = {member.id for member in saved.members}
    if len(members) != len(saved.members):
        raise ValueError("two members have one id")
    for member in saved.members:
        validate_name(member.id, "member_id")
        for partitions in (member.assigned, member.target, member.to_revoke):
            _check_partitions(partitions)
    _check_partitions(partition for partition, _ in saved.homes)
    if not all(0 <= value < 2**63 for value in _numbers(saved.stats)):
        raise ValueError("the numbers of its rebalances cannot be")
    return saved


def _check_partitions(partitions: Iterable[TopicPartition]) -> None:
    for topic, number in partitions:
        if not 0 <= number <= PARTITION_MAX:
            raise ValueError(f"there is no partition {number} of {topic!r}")


def _numbers(stats: RebalanceStats) -> list[int]:
    numbers = [value for value in msgspec.to_builtins(stats).values() if isinstance(value, int)]
    return numbers + list(stats.rebalances_by_reason.values())
