"""Everything that can be asked of a broker: the one seam between the doors and the broker or node.

A door translates its protocol into verbs and their results back; it decides nothing. One broker and a node of a cluster
look the same from here: a verb that another node answers returns the same `Pending` as one that this node answers.
Whatever is wrong with a request comes out of the `Pending` as a `GoQueueError`.

`called_by` gives the same service to one caller. A door calls it once per connection or request, so that every verb
knows its caller.
"""

from typing import Protocol

from goqueue.service.caller import Caller
from goqueue.service.cluster import ClusterVerbs
from goqueue.service.dead_letters import DeadLetterVerbs
from goqueue.service.delays import DelayVerbs
from goqueue.service.groups import GroupVerbs
from goqueue.service.messages import MessageVerbs
from goqueue.service.node import NodeVerbs
from goqueue.service.scans import ScanVerbs
from goqueue.service.schedules import ScheduleVerbs
from goqueue.service.schemas import SchemaVerbs
from goqueue.service.topics import TopicVerbs
from goqueue.service.traces import TraceVerbs
from goqueue.service.transactions import TransactionVerbs


class Service(Protocol):
    """The verbs, by noun."""

    @property
    def topics(self) -> TopicVerbs: ...
    @property
    def messages(self) -> MessageVerbs: ...
    @property
    def groups(self) -> GroupVerbs: ...
    @property
    def delays(self) -> DelayVerbs: ...
    @property
    def schedules(self) -> ScheduleVerbs: ...
    @property
    def dead_letters(self) -> DeadLetterVerbs: ...
    @property
    def schemas(self) -> SchemaVerbs: ...
    @property
    def transactions(self) -> TransactionVerbs: ...
    @property
    def traces(self) -> TraceVerbs: ...
    @property
    def scans(self) -> ScanVerbs: ...
    @property
    def node(self) -> NodeVerbs: ...
    @property
    def cluster(self) -> ClusterVerbs: ...

    @property
    def is_ready(self) -> bool:
        """Whether requests are served."""

    def called_by(self, caller: Caller) -> "Service":
        """The same service, whose verbs are asked by that caller."""
