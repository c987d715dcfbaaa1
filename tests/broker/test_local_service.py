"""The verbs of a broker, as doors see them."""

from goqueue import events
from goqueue.broker.local_service import LocalService
from goqueue.clock import SECOND
from goqueue.service.caller import Caller
from goqueue.service.new_message import NewMessage
from goqueue.wire.reports import DeadLetterFilter
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


def test_changes_of_delays_schedules_and_redrives_are_told(node: Node) -> None:
    node.create()
    due_ns = node.clock.wall_ns() + 3600 * SECOND
    node.messages(NewMessage(b"a", deliver_at_ns=due_ns), NewMessage(b"b", deliver_at_ns=due_ns))
    told = administered(node)
    service = LocalService.of(node.broker).called_by(CALLER)
    delays, schedules, letters = service.delays, service.schedules, service.dead_letters

    node.done(delays.reschedule("orders", due_ns + SECOND, partition=0, offset=0))
    node.done(delays.cancel("orders", partition=0, offset=0))
    node.done(schedules.create("orders", "daily", NewMessage(b"v"), cron="@daily"))
    node.done(schedules.pause("orders", name="daily"))
    node.done(schedules.list("orders"))
    node.done(schedules.delete("orders", "daily"))
    redrive = node.done(letters.redrive("orders", DeadLetterFilter()))
    node.done(letters.redrive_info("orders", redrive.id))

    assert {event.caller for event in told} == {"billing@127.0.0.1:5000"}
    assert [(event.verb, event.resource) for event in told] == [
        ("delays.reschedule", "orders"),
        ("delays.cancel", "orders"),
        ("schedules.create", "orders/daily"),
        ("schedules.pause", "orders/daily"),
        ("schedules.delete", "orders/daily"),
        ("dead_letters.redrive", "orders"),
    ]


def test_what_was_refused_or_only_read_is_not_told(node: Node) -> None:
    told = administered(node)
    service = LocalService.of(node.broker).called_by(CALLER)

    assert service.topics.delete("nothing").error is not None
    assert service.topics.list().result() == []

    assert told == []
