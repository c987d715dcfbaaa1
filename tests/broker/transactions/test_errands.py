"""An errand is repeated until it is acknowledged, or until that is hopeless."""

from goqueue.broker.timers import Timers
from goqueue.broker.transactions.errands import RETRY_NS, Errands
from goqueue.errors import GoQueueError, NotLeader, StorageFailed, StorageFull, TopicNotFound
from goqueue.service.pending import Pending
from goqueue.testing import ManualClock


class Participant:
    """Answers as it is told, one answer after the other; an error that is `raised` comes at once."""

    def __init__(self, *answers: GoQueueError | Pending[None], raises: bool = True) -> None:
        self.answers = list(answers)
        self.raises = raises
        self.count = 0

    def ask(self) -> Pending[None]:
        self.count += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Pending):
            return answer
        if self.raises:
            raise answer
        return Pending.failed(answer)


def errands() -> tuple[Errands, Timers, ManualClock]:
    timers, clock = Timers(), ManualClock()
    return Errands(timers, clock), timers, clock


def pass_time(timers: Timers, clock: ManualClock) -> None:
    clock.advance(RETRY_NS / 1e9)
    timers.tick(clock.monotonic_ns())


def test_an_errand_without_a_leader_or_without_room_is_asked_again_after_a_while() -> None:
    one, timers, clock = errands()
    participant = Participant(NotLeader("orders", 0), StorageFull("orders"), Pending.of(None))

    accepted, acknowledged = one.run([participant.ask])
    for _ in range(2):
        assert not accepted.is_done
        pass_time(timers, clock)

    assert (accepted.is_done, acknowledged.is_done, participant.count) == (True, True, 3)


def test_an_errand_is_accepted_once_and_acknowledged_by_whichever_leader_comes() -> None:
    one, timers, clock = errands()
    participant = Participant(NotLeader("orders", 0), Pending.of(None), raises=False)

    accepted, acknowledged = one.run([participant.ask])
    assert accepted.is_done
    assert not acknowledged.is_done
    pass_time(timers, clock)

    assert acknowledged.error is None
    assert acknowledged.is_done


def test_what_waits_is_asked_at_once_when_a_leader_has_come() -> None:
    one, timers, clock = errands()
    participant = Participant(NotLeader("orders", 0), Pending.of(None))
    accepted, _ = one.run([participant.ask])

    one.repeat_now()
    pass_time(timers, clock)

    assert accepted.is_done
    assert participant.count == 2


def test_a_deleted_topic_has_nothing_to_do() -> None:
    one, _, _ = errands()

    accepted, acknowledged = one.run([Participant(TopicNotFound("orders")).ask])

    assert accepted.is_done
    assert acknowledged.error is None


def test_a_failed_disk_is_not_asked_again_and_what_it_was_asked_for_is_never_acknowledged() -> None:
    one, timers, clock = errands()
    participant = Participant(StorageFailed("orders", "write", "it broke"))

    accepted, acknowledged = one.run([participant.ask])
    pass_time(timers, clock)

    assert accepted.is_done
    assert isinstance(acknowledged.error, StorageFailed)
    assert participant.count == 1


def test_a_coordinator_that_has_stopped_asks_for_nothing_more() -> None:
    one, timers, clock = errands()
    participant = Participant(NotLeader("orders", 0))
    accepted, _ = one.run([participant.ask])

    one.stop()
    one.repeat_now()
    pass_time(timers, clock)

    assert participant.count == 1
    assert not accepted.is_done
    assert not one.run([participant.ask])[0].is_done
