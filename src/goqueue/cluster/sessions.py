"""Which brokers a controller hears: what it believes about processes, and nothing that any decision depends on (R6).

Every broker has a full session when a controller begins: it has to find the controller first. A connection that was
reset shortens the session; one that was also refused, or a broker that has said it stops, ends it.
"""

from collections.abc import Iterable

from goqueue.cluster.timing import ClusterTiming


class Sessions:
    """When brokers were heard, by the monotonic clock of one node, during one epoch."""

    def __init__(self, timing: ClusterTiming, *, node: int, now_ns: int) -> None:
        self._timing = timing
        self._node = node
        self._began_ns = now_ns
        self._heard_ns: dict[int, int] = {}
        self._reset_ns: dict[int, int] = {}  # when its connection was reset, if it was not heard since
        self._dead: set[int] = set()

    def hear(self, node: int, now_ns: int) -> None:
        """The broker lives."""
        self._heard_ns[node] = now_ns
        self._reset_ns.pop(node, None)
        self._dead.discard(node)

    def reset(self, node: int, now_ns: int) -> None:
        """Its connection broke."""
        self._reset_ns.setdefault(node, now_ns)

    def end(self, node: int) -> None:
        """Its process is dead, or is about to stop."""
        self._dead.add(node)

    def last_heard_ns(self, node: int) -> int | None:
        return self._heard_ns.get(node)

    def is_expired(self, node: int, now_ns: int) -> bool:
        """Whether the broker is taken for dead."""
        if node == self._node:
            return False  # it is where this code runs
        if node in self._dead:
            return True
        if now_ns - self._heard_ns.get(node, self._began_ns) >= self._timing.session_ns:
            return True
        reset_ns = self._reset_ns.get(node)
        return reset_ns is not None and now_ns - reset_ns >= self._timing.reset_ns

    def is_doubtful(self, node: int) -> bool:
        """Whether nothing says that its process still lives: not heard yet, or not since its connection broke."""
        return node not in self._heard_ns or node in self._reset_ns or node in self._dead

    def hears_half(self, nodes: Iterable[int], *, within_ns: int, now_ns: int) -> bool:
        """Whether this node hears at least half of those brokers, itself among them.

        Brokers that it has never heard in this epoch do not count. If it is cut off from them, they elect another
        controller before their session expires here. If they are dead, nobody else can fence them.
        """
        met = [node for node in nodes if node != self._node and node in self._heard_ns]
        heard = [node for node in met if now_ns - self._heard_ns[node] < within_ns]
        return 2 * (len(heard) + 1) >= len(met) + 1
