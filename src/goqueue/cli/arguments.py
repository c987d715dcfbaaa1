"""Parsers of arguments that are more than text: durations, times, and pairs of a name and a value.

A parser checks and returns the text unchanged: the broker reads it again, so that both agree on what it means.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import typer

from goqueue.clock import SystemClock
from goqueue.server.settings import scalar
from goqueue.times import parse_delay, parse_duration, parse_time, parse_ttl

NOT_SETTINGS = ("name", "partitions", "replication_factor", "exist_ok")


def duration(text: str) -> str:
    """The text of a duration, checked."""
    try:
        parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def delay(text: str) -> str:
    """The text of a delay, checked."""
    try:
        parse_delay(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def ttl(text: str) -> str:
    """The text of a time to live, checked."""
    try:
        parse_ttl(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def moment(text: str) -> str:
    """The text of a time, checked."""
    try:
        parse_time(text, now_ns=SystemClock().wall_ns())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def given(options: Mapping[str, object]) -> dict[str, Any]:
    """The options that are set."""
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
    """Settings of a topic as `name=value`; a value that looks like a number becomes one."""
    found = pairs(given, option="--set")
    for name in found:
        if name in NOT_SETTINGS:
            raise typer.BadParameter(f"{name} is not a setting of a topic", param_hint="--set")
    return {name: scalar(value) for name, value in found.items()}
