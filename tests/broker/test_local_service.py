"""The verbs of a broker, as doors see them."""

from goqueue import events
from goqueue.broker.local_service import LocalService
from goqueue.service.caller import Caller
from tests.broker.brokers import Node

CALLER = Caller("native", "127.0.0.1:5000", "billing")


def administered(node: Node) -> list[events.Administered]:
    """A list that fills with what callers do."""
    told: list[events.Administered] = []

    def note(event: events.Event) -> None:
        if isinstance(event, events.Administered):
            told.append(event)

    node.broker.observe = events.Observers(node.broker.observe, note)
    return told


def test_an_administrative_verb_tells_who_did_what_to_which_resource(node: Node) -> None:
    told = administered(node)
    service = LocalService.of(node.broker).called_by(CALLER)

    node.done(service.topics.create("orders", partitions=1))
    node.done(service.topics.alter("orders", {"retention": "1h"}))
    node.done(service.topics.delete(topic="orders"))

    caller = "billing@127.0.0.1:5000"
    assert told == [
        events.Administered(verb, "orders", caller, "native")
        for verb in ("topics.create", "topics.alter", "topics.delete")
    ]


def test_what_was_refused_or_only_read_is_not_told(node: Node) -> None:
    told = administered(node)
    service = LocalService.of(node.broker).called_by(CALLER)

    assert service.topics.delete("nothing").error is not None
    assert service.topics.list().result() == []

    assert told == []
