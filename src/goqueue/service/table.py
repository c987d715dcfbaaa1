"""All verbs of the service, by name: `topics.create`, `groups.poll`, `delays.cancel`.

The table is made from the protocols of the nouns, so there is no second list of verbs to keep. A method of a noun
without a rule is a mistake, and fails when this module is imported.
"""

import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

from goqueue.service.cluster import ClusterVerbs
from goqueue.service.dead_letters import DeadLetterVerbs
from goqueue.service.delays import DelayVerbs
from goqueue.service.groups import GroupVerbs
from goqueue.service.messages import MessageVerbs
from goqueue.service.node import NodeVerbs
from goqueue.service.pending import Pending
from goqueue.service.scans import ScanVerbs
from goqueue.service.schedules import ScheduleVerbs
from goqueue.service.schemas import SchemaVerbs
from goqueue.service.topics import TopicVerbs
from goqueue.service.traces import TraceVerbs
from goqueue.service.transactions import TransactionVerbs
from goqueue.service.verb import RULE, Rule

NOUNS: Final[Mapping[str, type]] = {
    "topics": TopicVerbs,
    "messages": MessageVerbs,
    "groups": GroupVerbs,
    "delays": DelayVerbs,
    "schedules": ScheduleVerbs,
    "dead_letters": DeadLetterVerbs,
    "schemas": SchemaVerbs,
    "transactions": TransactionVerbs,
    "traces": TraceVerbs,
    "scans": ScanVerbs,
    "node": NodeVerbs,
    "cluster": ClusterVerbs,
}


class ServiceVerb(NamedTuple):
    """One row of the table."""

    noun: str
    method: str
    rule: Rule
    function: Any  # of the protocol

    @property
    def name(self) -> str:
        """The noun and the method, as the CALL frame and the audit log have it."""
        return f"{self.noun}.{self.method}"

    @property
    def is_called_by_name(self) -> bool:
        """Whether the native protocol offers it in a CALL frame."""
        return not self.rule.frame and not self.rule.not_native

    def parameters(self) -> Iterator[tuple[inspect.Parameter, Any]]:
        """The arguments and their types, in order."""
        hints = _hints(self.function)
        for parameter in list(inspect.signature(self.function).parameters.values())[1:]:
            yield parameter, hints[parameter.name]

    @property
    def result(self) -> Any:
        """The type of the answer, without the `Pending` around it."""
        answer = _hints(self.function)["return"]
        return get_args(answer)[0] if get_origin(answer) is Pending else answer


@cache
def _hints(function: Any) -> dict[str, Any]:
    return get_type_hints(function)


def _verbs() -> Iterator[ServiceVerb]:
    for noun, protocol in NOUNS.items():
        for method, function in vars(protocol).items():
            if inspect.isfunction(function) and not method.startswith("_"):
                rule = getattr(function, RULE, None)
                if rule is None:
                    raise TypeError(f"{noun}.{method} has no rule: declare it with @verb")
                yield ServiceVerb(noun, method, rule, function)


VERBS: Final[Mapping[str, ServiceVerb]] = {verb.name: verb for verb in _verbs()}
