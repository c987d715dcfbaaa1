"""The verbs about delayed messages."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from goqueue.service.pending import Pending
from goqueue.service.verb import Action, Resource, Route, verb
from goqueue.wire import reports

DelayedMessages: TypeAlias = list[reports.DelayedMessage]


class DelayVerbs(Protocol):
    """Delayed messages. Keys are compared as bytes."""

    @verb(Resource.TOPIC, Action.DESCRIBE, Route.LEADER)
    def list(
        self,
        topic: str,
        *,
        partition: int | None = None,
        key: bytes | None = None,
        state: str = "pending",
        skip: int = 0,
        limit: int = 100,
    ) -> Pending[DelayedMessages]:
        """By due time; an unknown topic has none."""

    @verb(Resource.TOPIC, Action.DESCRIBE, Route.LEADER)
    def get(self, topic: str, offset: int, *, partition: int | None = None) -> Pending[reports.DelayedMessage]: ...
    @verb(Resource.TOPIC, Action.WRITE, Route.LEADER)
    def cancel(
        self,
        topic: str,
        *,
        partition: int | None = None,
        offset: int | None = None,
        offsets: Sequence[int] | None = None,
        key: bytes | None = None,
    ) -> Pending[DelayedMessages]:
        """One by partition and offset (`MessageNotFound` unless it is pending), those that are pending of many
        offsets of a partition, or all pending ones of a key.
        """

    @verb(Resource.TOPIC, Action.WRITE, Route.LEADER)
    def reschedule(
        self,
        topic: str,
        deliver_at_ns: int,
        *,
        partition: int | None = None,
        offset: int | None = None,
        offsets: Sequence[int] | None = None,
        key: bytes | None = None,
    ) -> Pending[DelayedMessages]: ...
    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.ALL_NODES)
    def stats(self) -> Pending[reports.DelayReport]: ...
