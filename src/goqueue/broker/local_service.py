"""The verbs of a broker as a `Service`: the interface of this node for doors.

The parts of a broker answer from memory and return plain values, or a `Pending` if they have to wait for a disk or a
message. Here each verb of the table returns a `Pending`, which also carries errors. So a door cannot distinguish a verb
that this node answers from one that another node answers. Verbs about the node itself stay plain.

The wrapper of a verb is made when a caller first uses it, and kept with the caller: a connection that publishes a
million batches pays one function call for each.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from goqueue import events
from goqueue.broker.broker import Broker
from goqueue.errors import GoQueueError
from goqueue.service.caller import LOCAL, Caller
from goqueue.service.pending import Pending
from goqueue.service.service import Service
from goqueue.service.table import NOUNS, VERBS, ServiceVerb
from goqueue.service.verb import Action

PLAIN_NOUNS: Final = frozenset(("node",))
AUDITED: Final = frozenset((Action.CREATE, Action.ALTER, Action.DELETE))
WRITES_AUDITED: Final = frozenset(("delays", "schedules", "dead_letters"))
"""Nouns whose writes are audited, too: they change messages and schedules that were stored earlier."""

PARTS_OF_A_TOPIC: Final = ("name", "redrive_id")
"""The arguments that name a schedule and a redrive."""
DECISIONS: Final = ("topic", "node_id", "level")
"""The arguments that say what a decision about the cluster concerns."""


class LocalService:
    """The service of one broker, for one caller. The nouns of `Service` are attributes."""

    def __init__(self, broker: Broker, caller: Caller = LOCAL) -> None:
        self._broker = broker
        self._caller = caller

    def __getattr__(self, noun: str) -> object:
        """Called once for each noun: what it returns becomes an attribute. An HTTP request needs one of twelve."""
        if noun not in NOUNS:
            raise AttributeError(f"the service has no noun {noun}")
        part: object = getattr(self._broker, noun)
        if noun not in PLAIN_NOUNS:
            part = _Noun(noun, part, self._caller, self._broker.observe)
        setattr(self, noun, part)
        return part

    @classmethod
    def of(cls, broker: Broker) -> Service:
        """The service of a broker, for callers in its own process."""
        return cast("Service", cls(broker))

    @property
    def is_ready(self) -> bool:
        """Whether requests are served."""
        return self._broker.is_ready

    def called_by(self, caller: Caller) -> Service:
        """The same service for that caller."""
        return cast("Service", LocalService(self._broker, caller))


class _Noun:
    """The verbs of one noun, for one caller."""

    def __init__(self, noun: str, part: object, caller: Caller, observe: events.Observer) -> None:
        self._noun = noun
        self._part = part
        self._caller = caller
        self._observe = observe

    def __getattr__(self, method: str) -> Callable[..., Pending[Any]]:
        """Called once for each verb: what it returns becomes an attribute."""
        verb = VERBS.get(f"{self._noun}.{method}")
        if verb is None:
            raise AttributeError(f"{self._noun} has no verb {method}")
        function = _lifted(getattr(self._part, method))
        if verb.rule.action in AUDITED or (verb.rule.action is Action.WRITE and self._noun in WRITES_AUDITED):
            function = _audited(function, verb, self._caller, self._observe)
        setattr(self, method, function)
        return function


def _lifted(function: Callable[..., Any]) -> Callable[..., Pending[Any]]:
    """The function, with its result or its error as a `Pending`."""

    def call(*arguments: Any, **named: Any) -> Pending[Any]:
        try:
            answer = function(*arguments, **named)
        except GoQueueError as error:
            return Pending.failed(error)
        return answer if type(answer) is Pending else Pending.of(answer)

    return call


def _audited(
    function: Callable[..., Pending[Any]], verb: ServiceVerb, caller: Caller, observe: events.Observer
) -> Callable[..., Pending[Any]]:
    """The function; if it succeeds, an event names the caller, the verb and the resource."""
    names = [parameter.name for parameter, _ in verb.parameters()]

    def call(*arguments: Any, **named: Any) -> Pending[Any]:
        given: Mapping[str, Any] = {**dict(zip(names, arguments, strict=False)), **named}
        answer = function(*arguments, **named)
        answer.then(lambda done: _tell(done, given))
        return answer

    def _tell(done: Pending[Any], given: Mapping[str, Any]) -> None:
        if done.error is None:
            named = (verb.rule.argument, *PARTS_OF_A_TOPIC) if verb.rule.argument else DECISIONS
            path = [given[name] for name in named if given.get(name) is not None]
            observe(events.Administered(verb.name, "/".join(map(str, path)), str(caller), caller.door))

    return call
