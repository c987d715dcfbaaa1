"""The verbs about dead letters."""

from typing import Protocol, TypeAlias

from goqueue.service.pending import Pending
from goqueue.service.verb import Action, Resource, Route, verb
from goqueue.wire import reports

DeadLetterList: TypeAlias = list[reports.DeadLetter]
DeadLetterQueues: TypeAlias = list[reports.DeadLetterQueue]


class DeadLetterVerbs(Protocol):
    """Dead letters; `topic` is the one they come from."""

    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ALL_NODES)
    def queues(self) -> Pending[DeadLetterQueues]: ...
    @verb(Resource.TOPIC, Action.DESCRIBE, Route.LEADER)
    def describe(self, topic: str) -> Pending[reports.DeadLetterQueue]: ...
    @verb(Resource.TOPIC, Action.READ, Route.LEADER)
    def list(
        self, topic: str, wanted: reports.DeadLetterFilter, *, skip: int = 0, limit: int = 100
    ) -> Pending[DeadLetterList]: ...
    @verb(Resource.TOPIC, Action.DESCRIBE, Route.LEADER)
    def plan(
        self,
        topic: str,
        wanted: reports.DeadLetterFilter,
        *,
        limit: int = 0,
        target_topic: str | None = None,
        max_redrives: int = 3,
        to: str | None = None,
    ) -> Pending[reports.RedrivePlan]: ...
    @verb(Resource.TOPIC, Action.WRITE, Route.LEADER)
    def redrive(
        self,
        topic: str,
        wanted: reports.DeadLetterFilter,
        *,
        rate: float = 0,
        limit: int = 0,
        target_topic: str | None = None,
        max_redrives: int = 3,
        to: str | None = None,
    ) -> Pending[reports.RedriveInfo]: ...
    @verb(Resource.TOPIC, Action.DESCRIBE, Route.LEADER)
    def redrive_info(self, topic: str, redrive_id: str) -> Pending[reports.RedriveInfo]: ...
    @verb(Resource.TOPIC, Action.WRITE, Route.LEADER)
    def stop_redrive(self, topic: str, redrive_id: str) -> Pending[reports.RedriveInfo]: ...
