"""The table of verbs: every verb says what it concerns, the broker has it, and every door offers it or says why not."""

import ast
import inspect
from functools import cache
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import pytest

import goqueue
from goqueue.broker.local_service import PLAIN_NOUNS, LocalService
from goqueue.doors.native.calls import CALLS, arguments_of
from goqueue.errors import InvalidRequest
from goqueue.service.pending import Pending
from goqueue.service.table import NOUNS, VERBS, ServiceVerb
from goqueue.service.verb import Resource, Route
from goqueue.wire.verbs import Verb as Frame
from tests.broker.brokers import Node

PACKAGE = Path(goqueue.__file__).parent
ALL = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)


@ALL
def test_a_verb_names_its_resource_by_one_of_its_arguments(verb: ServiceVerb) -> None:
    names = {parameter.name for parameter, _ in verb.parameters()}

    if verb.rule.resource is Resource.CLUSTER:
        assert not verb.rule.argument
    else:
        assert verb.rule.argument in names


@ALL
def test_a_verb_that_another_node_may_answer_is_pending(verb: ServiceVerb) -> None:
    answer = get_type_hints(verb.function)["return"]

    if verb.noun in PLAIN_NOUNS:
        assert verb.rule.route is Route.ANY_NODE
    else:
        assert get_origin(answer) is Pending


@ALL
def test_a_broker_has_the_verb_with_the_same_arguments(verb: ServiceVerb, node: Node) -> None:
    function = getattr(getattr(node.broker, verb.noun), verb.method)

    declared = [(one.name, one.kind, one.default) for one, _ in verb.parameters()]
    parameters = inspect.signature(function).parameters.values()
    assert [(one.name, one.kind, one.default) for one in parameters] == declared
    returned = get_type_hints(function)["return"]
    if get_origin(returned) is Pending:
        returned = get_args(returned)[0]
    assert _is_a(returned, verb.result), f"{returned} is no {verb.result}"


def _is_a(returned: object, declared: object) -> bool:
    """Whether a value of the one type is one of the other, as far as containers go."""
    if returned == declared:
        return True
    left, right = get_origin(returned) or returned, get_origin(declared) or declared
    if getattr(right, "_is_protocol", False):
        return all(callable(getattr(left, name, None)) for name, one in vars(right).items() if inspect.isfunction(one))
    return isinstance(left, type) and isinstance(right, type) and issubclass(left, right)


@ALL
def test_a_verb_is_offered_by_the_native_protocol_or_says_why_not(verb: ServiceVerb) -> None:
    if verb.rule.frame:
        assert verb.rule.frame in Frame.__members__
        assert not verb.rule.not_native
    else:
        assert (verb.name in CALLS) != bool(verb.rule.not_native)


@ALL
def test_a_verb_is_offered_by_http_or_says_why_not(verb: ServiceVerb) -> None:
    assert ((verb.noun, verb.method) in asked_by_http()) != bool(verb.rule.not_http)


@ALL
def test_a_verb_is_offered_by_python_or_says_why_not(verb: ServiceVerb) -> None:
    texts, frames = asked_by_client()

    is_offered = verb.rule.frame in frames if verb.rule.frame else verb.name in texts
    assert is_offered != bool(verb.rule.not_python)


@cache
def asked_by_http() -> frozenset[tuple[str, str]]:
    """The nouns and methods that the routes use, also by a local name for the noun."""
    found = set()
    for path in (PACKAGE / "doors" / "http").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(value=ast.Attribute(attr=noun) | ast.Name(id=noun), attr=method) if noun in NOUNS:
                    found.add((noun, method))
    return frozenset(found)


@cache
def asked_by_client() -> tuple[frozenset[str], frozenset[str]]:
    """The names of verbs that the client calls, and the frames that it sends."""
    texts, frames = set(), set()
    for folder in ("client", "spark"):
        for path in (PACKAGE / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Constant(value=str(text)):
                        texts.add(text)
                    case ast.Attribute(value=ast.Name(id="Verb"), attr=frame):
                        frames.add(frame)
    return frozenset(texts), frozenset(frames)


@pytest.mark.parametrize("name", CALLS)
def test_the_arguments_of_a_call_are_those_of_the_verb(name: str) -> None:
    fields = arguments_of(CALLS[name]).__struct_fields__

    assert list(fields) == [parameter.name for parameter, _ in CALLS[name].parameters()]


def test_a_noun_has_no_method_beside_its_verbs(node: Node) -> None:
    service = LocalService.of(node.broker)

    with pytest.raises(AttributeError, match="topics has no verb explode"):
        service.topics.explode  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="no noun explosions"):
        service.explosions  # type: ignore[attr-defined]  # noqa: B018


def test_a_refusal_comes_out_of_the_pending(node: Node) -> None:
    pending = LocalService.of(node.broker).topics.offsets("nothing", at="noon")

    assert pending.is_done
    assert pending.error is not None
    node.create("orders")
    with pytest.raises(InvalidRequest, match="noon"):
        LocalService.of(node.broker).topics.offsets("orders", at="noon").result()
