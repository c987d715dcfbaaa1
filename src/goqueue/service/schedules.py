"""The verbs about recurring messages."""

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from goqueue.service.new_message import NewMessage
from goqueue.service.pending import Pending
from goqueue.service.verb import Action, Resource, Route, verb
from goqueue.wire import reports

ScheduleList: TypeAlias = list[reports.ScheduleInfo]


class ScheduleVerbs(Protocol):
    """Recurring messages."""

    @verb(Resource.TOPIC, Action.WRITE, Route.COORDINATOR)
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
    ) -> Pending[reports.ScheduleInfo]: ...
    @verb(Resource.TOPIC, Action.DESCRIBE, Route.COORDINATOR)
    def list(self, topic: str) -> Pending[ScheduleList]: ...
    @verb(Resource.TOPIC, Action.DESCRIBE, Route.COORDINATOR)
    def get(self, topic: str, name: str) -> Pending[reports.ScheduleInfo]:
        """With its history."""

    @verb(Resource.TOPIC, Action.WRITE, Route.COORDINATOR)
    def alter(self, topic: str, name: str, changes: Mapping[str, object]) -> Pending[reports.ScheduleInfo]:
        """Change any of the arguments of `create`, and `message`."""

    @verb(Resource.TOPIC, Action.WRITE, Route.COORDINATOR)
    def delete(self, topic: str, name: str) -> Pending[None]: ...
    @verb(Resource.TOPIC, Action.WRITE, Route.COORDINATOR)
    def pause(self, topic: str, name: str) -> Pending[reports.ScheduleInfo]: ...
    @verb(Resource.TOPIC, Action.WRITE, Route.COORDINATOR)
    def resume(self, topic: str, name: str) -> Pending[reports.ScheduleInfo]: ...
    @verb(Resource.TOPIC, Action.WRITE, Route.COORDINATOR)
    def run(self, topic: str, name: str) -> Pending[reports.ScheduleInfo]: ...
