"""What the service knows of a verb beside its signature: what it concerns, what it does to that, and who answers it.

A verb is a method of one of the protocols beside this module, and `verb` says these facts where the method is declared.
`table.py` gathers all of them. Whatever has to treat verbs alike (the native CALL frame, routing to the right node,
authorization, the audit log, the reference pages) reads the table; nothing about a verb is said twice.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
RULE: Final = "__verb__"


class Resource(StrEnum):
    """What a verb concerns. The value is the argument that names it, unless the verb says otherwise."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional_id"
    SUBJECT = "subject"
    CLUSTER = ""


class Action(StrEnum):
    """What a verb does to its resource."""

    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    DESCRIBE = "describe"
    READ = "read"
    WRITE = "write"


class Route(StrEnum):
    """Which node answers a verb."""

    LEADER = "leader of the partition"
    COORDINATOR = "coordinator of the group, transactional id, schedule or schema"
    CONTROLLER = "controller"
    ANY_NODE = "any node"
    ALL_NODES = "all nodes, merged"


class Rule(NamedTuple):
    """What `verb` says of a method."""

    resource: Resource
    action: Action
    route: Route
    argument: str  # that names the resource; empty for the cluster
    frame: str  # of the native protocol; empty for a verb that is called by name
    not_native: str  # why a door does not offer it; empty where it does
    not_http: str
    not_python: str


def verb(
    resource: Resource,
    action: Action,
    route: Route,
    *,
    argument: str | None = None,
    frame: str = "",
    not_native: str = "",
    not_http: str = "",
    not_python: str = "",
) -> Callable[[F], F]:
    """Declare the method a verb. `argument` names the resource where that is not the argument of the same name."""
    named = resource.value if argument is None else argument
    rule = Rule(resource, action, route, named, frame, not_native, not_http, not_python)

    def declare(function: F) -> F:
        setattr(function, RULE, rule)
        return function

    return declare
