"""The last poll of each member, so that messages whose answer was lost on the way are delivered again at once.

A client numbers its polls. When it repeats a number, the answer to that poll never arrived: what the poll leased is
released uncounted, and the gaps that it reported are reported again. Without this such messages come back only when
their leases expire.
"""

from collections.abc import Iterable
from itertools import islice

from goqueue.errors import BrokerUnavailable
from goqueue.service.groups import GroupVerbs, PollResult
from goqueue.service.pending import Pending
from goqueue.wire import verbs
from goqueue.wire.reports import PartitionGap, Settlement

POLLS_MAX = 10_000
"""So many members are remembered. Messages that other members lose on the way come back when their leases expire."""
POLLS_CHECKED = 1_000
"""So many of them are checked every second: are they still members?"""

Batches = list[tuple[str, int, str]]  # topic, partition, nonce


class LastPoll:
    """One poll: what it has leased, or is going to."""

    __slots__ = ("batches", "gaps", "number", "pending")

    def __init__(self, number: int) -> None:
        self.number = number
        self.pending: Pending[PollResult] | None = None
        self.batches: Batches = []
        self.gaps: list[PartitionGap] = []  # a group is told of each gap once

    def answered(self, result: PollResult) -> None:
        """The poll has its answer, which gets the gaps that an earlier answer lost."""
        self.pending = None
        self.batches = batches_of(result)
        if self.gaps:
            result.polled.gaps = self.gaps + result.polled.gaps
        self.gaps = result.polled.gaps


class LastPolls:
    """The last polls of all members, shared by the connections of a door."""

    def __init__(self, groups: GroupVerbs) -> None:
        self._groups = groups
        self._by_member: dict[tuple[str, str], LastPoll] = {}

    def __len__(self) -> int:
        return len(self._by_member)

    def begin(self, asked: verbs.PollRequest) -> LastPoll:
        """Remember the poll. If it repeats the last one, release what that has leased."""
        polls, member = self._by_member, (asked.group, asked.member_id)
        last = polls.pop(member, None)
        polls[member] = following = LastPoll(asked.number)
        if last and last.number == asked.number:
            if last.pending:
                last.pending.fail(BrokerUnavailable("another poll took its place"))
            self.release(last.batches)
            following.gaps = last.gaps
        elif len(polls) > POLLS_MAX:
            del polls[next(iter(polls))]
        return following

    def release(self, batches: Iterable[tuple[str, int, str]]) -> None:
        """Deliver them to other members as if they had not been delivered; without leases that cannot be done.

        A release that is refused needs no answer: the leases expire then.
        """
        for topic, partition, nonce in batches:
            self._groups.settle_batch(topic, partition, nonce, b"", Settlement("release"))

    def forget(self, group: str, member_id: str) -> None:
        """The member left, or begins anew."""
        self._by_member.pop((group, member_id), None)

    def forget_members_that_left(self) -> None:
        """Look at `POLLS_CHECKED` of them."""
        for member in list(islice(self._by_member, POLLS_CHECKED)):
            last = self._by_member.pop(member)
            if self._groups.has_member(*member).result():
                self._by_member[member] = last


def batches_of(result: PollResult) -> Batches:
    """What the poll has leased."""
    return [(one.topic, one.partition, one.nonce) for one in result.polled.batches]
