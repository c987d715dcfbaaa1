"""A group as bytes: what outlives its coordinator. Times that only count within one process are left out."""

import msgspec

from goqueue.groups.member import Member
from goqueue.groups.rebalance import RebalanceStats
from goqueue.names import TopicPartition


class SavedMember(msgspec.Struct, frozen=True, omit_defaults=True):
    """One member; its session and its deadlines begin anew."""

    id: str
    client_id: str
    topics: tuple[str, ...]
    session_timeout_ms: int
    start: str
    ack: str
    auto_commit: bool
    visibility_timeout_ms: int | None
    max_in_flight: int | None
    confirms_revocations: bool
    joined_at_ns: int
    last_heartbeat_ns: int
    generation: int
    auto_commit_interval_ms: int = 5_000
    assigned: tuple[TopicPartition, ...] = ()  # in the mode `partitioned`
    is_settled: bool = True
    target: tuple[TopicPartition, ...] = ()  # unless it is what is assigned
    to_revoke: tuple[TopicPartition, ...] = ()


class SavedGroup(msgspec.Struct, frozen=True):
    """Everything about a group."""

    name: str
    created_at_ns: int
    generation: int
    version: int
    state: str
    mode: str
    protocol: str
    assignor: str
    ack: str
    partition_counts: dict[str, int]
    members: list[SavedMember]  # in the order in which they joined
    expired: list[str]
    stats: RebalanceStats
    homes: list[tuple[TopicPartition, str]]  # of an eager rebalance under way


_DERIVED = ("assigned", "is_settled", "target", "to_revoke")
_SAME = tuple(name for name in SavedMember.__struct_fields__ if name not in _DERIVED)


def saved_member(member: Member, *, mode: str) -> SavedMember:
    """The member as it is; what it has is left out where everybody has everything."""
    return SavedMember(
        **{name: getattr(member, name) for name in _SAME},
        assigned=member.assigned if mode == "partitioned" else (),
        is_settled=member.is_settled,
        target=() if member.is_settled else tuple(sorted(member.target)),
        to_revoke=member.to_revoke,
    )


def restored_member(saved: SavedMember, *, now_ns: int) -> Member:
    """The member as it was, heard of just now."""
    member = Member(**{name: getattr(saved, name) for name in _SAME}, heard_ns=now_ns)
    member.hold(saved.assigned)
    member.target = member.held if saved.is_settled else frozenset(saved.target)
    member.ask_back(saved.to_revoke, now_ns=now_ns)
    return member
