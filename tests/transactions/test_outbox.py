"""Facts that no answer waits for."""

from goqueue.transactions import facts
from tests.transactions.desk import (
    Desk,
)


def test_news_that_nobody_waits_for_never_bring_back_what_is_over() -> None:
    desk = Desk(refresh_ns=1)
    desk.init("a")
    desk.now_ns = 10
    desk.core.heartbeat(101, 0, wall_ns=desk.wall_ns)
    desk.init("a")

    assert desk.core.take_facts() == {}
    assert facts.decode(facts.SavedTransactional, b"t:a", desk.stored[b"t:a"]).epoch == 1
