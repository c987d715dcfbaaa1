"""As even as can be, and among the even ways one that moves the fewest partitions.

*Even* is the least sum of squares of what the members have: counts differ by at most one wherever the members' topics
allow it. A partition is *moved* if its owner still wants its topic and another member gets it.

It starts with every partition at its home, the owner it has now, and every homeless one at the member that has least.
Nothing is moved, so no other way to deal out these same counts moves less. From there on partitions are handed along
chains, from one member to the next, so that the first in the chain ends with one less and the last with one more. A
chain that moves the fewest partitions for its two ends keeps that property (as in every min-cost flow), so two sweeps
are enough:

    1. from the members with most downwards: to any member that has at least two less, until there is none. What can be
       reached from members of one count no later chain passes through, so one sweep downwards does it;
    2. to any member that has exactly one less, as long as that moves fewer partitions in all.

When neither finds a chain, nothing better exists. A chain is found over *classes* of partitions that are all alike,
those of one topic and one home, so the work does not grow with the partitions but with the kinds of them:

    member -> class   it has one of those; it costs -1 if that is away from home already, for it will be moved but once
    class  -> home    costs nothing
    class  -> topic   costs 1, nothing for the homeless
    topic  -> member  for every member that wants it

One search finds cheapest chains to all members, and as long as they have something to hand along they all stay so.
"""

from collections import deque
from collections.abc import Collection, Mapping
from heapq import heapify, heappop, heapreplace

from goqueue.names import TopicPartition

_NOBODY = -1
_Link = tuple[int, int, int]  # giver, class, taker


def assign(
    topics: Mapping[str, Collection[str]], partition_counts: Mapping[str, int], owners: Mapping[TopicPartition, str]
) -> dict[str, list[TopicPartition]]:
    """What each member is to have."""
    member_ids = sorted(topics)
    topic_names = sorted(set[str]().union(*topics.values()) & partition_counts.keys())
    table = _Table(
        takers=[
            [index for index, member_id in enumerate(member_ids) if topic in topics[member_id]] for topic in topic_names
        ],
        member_count=len(member_ids),
    )
    numbers = {member_id: index for index, member_id in enumerate(member_ids)}
    for index, topic in enumerate(topic_names):
        homes = (owners.get(TopicPartition(topic, partition)) for partition in range(partition_counts[topic]))
        table.place(index, [_NOBODY if home is None else numbers.get(home, _NOBODY) for home in homes])
    table.take_in()
    table.level()
    table.bring_home()
    return {
        member_id: [TopicPartition(topic_names[topic], partition) for topic, partition in table.partitions(index)]
        for index, member_id in enumerate(member_ids)
    }


class _Table:
    """Who has which partitions of which class. Members, topics and classes go by number."""

    def __init__(self, takers: list[list[int]], member_count: int) -> None:
        self._takers = takers
        self._counts = [0] * member_count
        self._hands: list[dict[int, list[int]]] = [{} for _ in range(member_count)]
        self._class_numbers: dict[tuple[int, int], int] = {}
        self._classes: list[tuple[int, int]] = []  # topic and home
        self._homeless: list[list[int]] = [[] for _ in takers]

    def place(self, topic: int, homes: list[int]) -> None:
        """Put each partition of the topic where it is at home, if that one wants it."""
        takers = set(self._takers[topic])
        for partition, home in enumerate(homes):
            if home in takers:
                self._hands[home].setdefault(self._class(topic, home), []).append(partition)
                self._counts[home] += 1
            else:
                self._homeless[topic].append(partition)

    def take_in(self) -> None:
        """Give each homeless partition to the one that has least, those that few want first."""
        for topic in sorted(range(len(self._takers)), key=lambda topic: len(self._takers[topic])):
            heap = [(self._counts[member], member) for member in self._takers[topic]]
            heapify(heap)
            for partition in self._homeless[topic]:
                count, member = heap[0]
                self._hands[member].setdefault(self._class(topic, _NOBODY), []).append(partition)
                self._counts[member] = count + 1
                heapreplace(heap, (count + 1, member))

    def _class(self, topic: int, home: int) -> int:
        number = self._class_numbers.setdefault((topic, home), len(self._classes))
        if number == len(self._classes):
            self._classes.append((topic, home))
        return number

    def partitions(self, member: int) -> list[tuple[int, int]]:
        """What the member has, by topic."""
        return [
            (self._classes[kind][0], partition)
            for kind, partitions in self._hands[member].items()
            for partition in partitions
        ]

    def level(self) -> None:
        """Make it as even as can be."""
        count = max(self._counts, default=0)
        while count >= 2:
            costs, came_from = self._search(count)
            heap = [(own, costs[member], member) for member, own in enumerate(self._counts) if own <= count - 2]
            heap = [(own, cost, member) for own, cost, member in heap if cost is not None]
            if not heap:
                count = max((own for own in self._counts if own < count), default=0)
                continue
            heapify(heap)
            chains = {member: self._chain(came_from, member) for _, _, member in heap}
            while heap:
                own, cost, member = heap[0]
                chain = chains[member]
                # Chains of one search share members: the giver may have too few by now, or a link nothing left to give.
                if self._counts[chain[0][0]] >= own + 2 and all(kind in self._hands[giver] for giver, kind, _ in chain):
                    self._hand_along(chain)
                    heapreplace(heap, (own + 1, cost, member))
                else:
                    heappop(heap)

    def bring_home(self) -> None:
        """Move fewer partitions, without making it less even."""
        found = True
        while found:
            found = False
            for count in sorted(set(self._counts), reverse=True):
                while chain := self._shorter(count):
                    self._hand_along(chain)
                    found = True

    def _shorter(self, count: int) -> list[_Link] | None:
        """A chain from a member with that count to one with one less that moves fewer partitions in all."""
        costs, came_from = self._search(count)
        lower = [(costs[member] or 0, member) for member, own in enumerate(self._counts) if own == count - 1]
        cost, last = min(lower, default=(0, 0))
        return self._chain(came_from, last) if cost < 0 else None

    def _search(self, count: int) -> tuple[list[int | None], list[int]]:
        """The cheapest way to everything that those with this count can reach. There are no negative circles.

        Members come first among the nodes, then classes, then topics.
        """
        first_class = len(self._counts)
        first_topic = first_class + len(self._classes)
        costs: list[int | None] = [None] * (first_topic + len(self._takers))
        came_from = [_NOBODY] * len(costs)
        queue = deque(member for member, own in enumerate(self._counts) if own == count)
        for member in queue:
            costs[member] = 0
        queued = set(queue)
        while queue:
            node = queue.popleft()
            queued.discard(node)
            cost = costs[node]
            assert cost is not None
            if node < first_class:
                steps = [
                    (first_class + kind, cost if self._classes[kind][1] in (_NOBODY, node) else cost - 1)
                    for kind in self._hands[node]
                ]
            elif node < first_topic:
                topic, home = self._classes[node - first_class]
                steps = [(first_topic + topic, cost if home == _NOBODY else cost + 1)]
                if home != _NOBODY:
                    steps.append((home, cost))
            else:
                steps = [(member, cost) for member in self._takers[node - first_topic]]
            for following, total in steps:
                known = costs[following]
                # Costs may be negative, so a node that was searched may be reached for less, and is searched again.
                if known is None or total < known:
                    costs[following] = total
                    came_from[following] = node
                    if following not in queued:
                        queued.add(following)
                        queue.append(following)
        return costs, came_from

    def _chain(self, came_from: list[int], last: int) -> list[_Link]:
        """The links to the last one, from the first."""
        first_class = len(self._counts)
        first_topic = first_class + len(self._classes)
        chain: list[_Link] = []
        taker = last
        while came_from[taker] != _NOBODY:
            kind = came_from[taker]
            if kind >= first_topic:
                kind = came_from[kind]
            giver = came_from[kind]
            chain.append((giver, kind - first_class, taker))
            taker = giver
        chain.reverse()
        return chain

    def _hand_along(self, chain: list[_Link]) -> None:
        for giver, kind, taker in chain:
            hand = self._hands[giver][kind]
            self._hands[taker].setdefault(kind, []).append(hand.pop())
            if not hand:
                del self._hands[giver][kind]
        self._counts[chain[0][0]] -= 1
        self._counts[chain[-1][2]] += 1
