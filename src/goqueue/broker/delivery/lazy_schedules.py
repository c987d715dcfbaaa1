"""The schedules of a broker, before there are any: the journal they live in is made with the first one."""

from collections.abc import Callable, Mapping

from goqueue.broker.delivery.schedules import Scheduling, TopicFacts
from goqueue.broker.partition.journal import Journal
from goqueue.errors import NotFound
from goqueue.service.new_message import NewMessage
from goqueue.service.pending import Pending, after, chained
from goqueue.service.schedules import ScheduleList
from goqueue.wire.reports import ScheduleInfo

SCHEDULES_TOPIC = "__schedules"


class Recurring:
    """The verbs about recurring messages."""

    def __init__(
        self,
        open_journal: Callable[[], Pending[Journal]],
        make: Callable[[Journal], Scheduling],
        topic_facts: Callable[[str], TopicFacts],
    ) -> None:
        self._open_journal = open_journal
        self._make = make
        self._topic_facts = topic_facts
        self._scheduling: Scheduling | None = None

    def load(self, journal: Journal) -> None:
        """Go on with the schedules that were there before a restart."""
        self._scheduling = self._make(journal)

    def create(
        self,
        topic: str,
        name: str,
        message: NewMessage,
        *,
        cron: str | None = None,
        every_ns: int | None = None,
        timezone: str = "UTC",
        catch_up: str = "skip",
        start_ns: int | None = None,
        end_ns: int | None = None,
        delay_ns: int | None = None,
        ttl_ns: int | None = None,
        paused: bool = False,
    ) -> Pending[ScheduleInfo]:
        """A new schedule, once it is on the medium."""
        self._topic_facts(topic)
        return chained(
            self._opened(),
            lambda scheduling: scheduling.create(
                topic,
                name,
                message,
                cron=cron,
                every_ns=every_ns,
                timezone=timezone,
                catch_up=catch_up,
                start_ns=start_ns,
                end_ns=end_ns,
                delay_ns=delay_ns,
                ttl_ns=ttl_ns,
                paused=paused,
            ),
        )

    def list(self, topic: str) -> ScheduleList:
        """All schedules of the topic, by name, without their histories."""
        self._topic_facts(topic)
        return self._scheduling.list(topic) if self._scheduling else []

    def get(self, topic: str, name: str) -> ScheduleInfo:
        """The schedule as it is now, with its last runs."""
        return self._found(topic, name).get(topic, name)

    def alter(self, topic: str, name: str, changes: Mapping[str, object]) -> Pending[ScheduleInfo]:
        """Change any of the arguments of `create`, and `message`."""
        return self._found(topic, name).alter(topic, name, changes)

    def delete(self, topic: str, name: str) -> Pending[None]:
        """Publish it no more."""
        return self._found(topic, name).delete(topic, name)

    def pause(self, topic: str, name: str) -> Pending[ScheduleInfo]:
        """Let it publish nothing until it is resumed."""
        return self._found(topic, name).pause(topic, name)

    def resume(self, topic: str, name: str) -> Pending[ScheduleInfo]:
        """Let it go on from now."""
        return self._found(topic, name).resume(topic, name)

    def run(self, topic: str, name: str) -> Pending[ScheduleInfo]:
        """Publish once now, paused or not."""
        return self._found(topic, name).run(topic, name)

    def topic_deleted(self, topic: str) -> None:
        """Its schedules go with it."""
        if self._scheduling:
            self._scheduling.topic_deleted(topic)

    def stop(self) -> None:
        """Begin nothing more."""
        if self._scheduling:
            self._scheduling.stop()

    def _opened(self) -> Pending[Scheduling]:
        if self._scheduling:
            return Pending.of(self._scheduling)
        return after(self._open_journal(), self._first)

    def _first(self, journal: Journal) -> Scheduling:
        if self._scheduling is None:  # else somebody was faster
            self.load(journal)
        assert self._scheduling is not None
        return self._scheduling

    def _found(self, topic: str, name: str) -> Scheduling:
        if self._scheduling is None:
            self._topic_facts(topic)
            raise NotFound(f"schedule {name} of {topic}")
        return self._scheduling
