"""Arguments that are more than text, and what is said when they are not what they should be."""

from collections.abc import Iterable, Mapping
from typing import Any

import typer

from goqueue.clock import SystemClock
from goqueue.server.settings import scalar
from goqueue.times import parse_delay, parse_duration, parse_time, parse_ttl

NOT_SETTINGS = ("name", "partitions", "replication_factor", "exist_ok")


def duration(text: str) -> str:
    """A duration as it was written, once it is known to be one."""
    try:
        parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def delay(text: str) -> str:
    """A delay as it was written, once it is known to be one."""
    try:
        parse_delay(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def ttl(text: str) -> str:
    """A time to live as it was written, once it is known to be one."""
    try:
        parse_ttl(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def moment(text: str) -> str:
    """A time as it was written, once it is known to be one."""
    try:
        parse_time(text, now_ns=SystemClock().wall_ns())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def given(options: Mapping[str, object]) -> dict[str, Any]:
    """Those that are set."""
    return {name: value for name, value in options.items() if value is not None}


def pairs(given: Iterable[str], *, option: str) -> dict[str, str]:
    """`name=value` for each; the last one wins."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
        found[name] = value
    return found


def settings(given: Iterable[str]) -> dict[str, object]:
    """Settings of a topic as `name=value`; what looks like a number is one."""
    found = pairs(given, option="--set")
    for name in found:
        if name in NOT_SETTINGS:
            raise typer.BadParameter(f"{name} is no setting of a topic", param_hint="--set")
    return {name: scalar(value) for name, value in found.items()}
