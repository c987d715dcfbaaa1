from goqueue import events
from goqueue.events import Handlers, Observers

CREATED = events.TopicCreated("orders", 3, internal=False)
DELETED = events.TopicDeleted("orders", internal=False)
POLLED = events.PollAnswered(group="g", count=1, waited_ns=0)


def test_an_observer_of_some_kinds_hears_of_nothing_else() -> None:
    heard: list[events.Event] = []
    observe = Handlers({events.TopicCreated: heard.append})

    for event in (CREATED, DELETED, CREATED):
        observe(event)

    assert heard == [CREATED, CREATED]


def test_several_observers_are_told_in_their_order_of_what_concerns_them() -> None:
    told: list[tuple[str, events.Event]] = []

    def teller(name: str) -> events.Observer:
        return lambda event: told.append((name, event))

    inner = Observers(Handlers({events.TopicDeleted: teller("second")}), teller("third"))
    observe = Observers(Handlers({events.TopicCreated: teller("first")}), inner, teller("last"))

    for event in (CREATED, DELETED, POLLED, CREATED):
        observe(event)

    assert told == [
        ("first", CREATED),
        ("third", CREATED),
        ("last", CREATED),
        ("second", DELETED),
        ("third", DELETED),
        ("last", DELETED),
        ("third", POLLED),
        ("last", POLLED),
        ("first", CREATED),
        ("third", CREATED),
        ("last", CREATED),
    ]
