"""docs/reference/configuration.md names every setting, variable and client option, with its true default."""

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import goqueue
from goqueue import Client
from goqueue.client import environment
from goqueue.server.config import SETTINGS, VARIABLES, ServerConfig
from goqueue.times import format_duration
from goqueue.topics.config import TopicConfig
from tests.docs.markdown import ROOT

PAGE = (ROOT / "docs" / "reference" / "configuration.md").read_text()
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]*) \|", re.MULTILINE)
VARIABLE = re.compile(r"\bGOQUEUE_[A-Z][A-Z_]*[A-Z]\b")
NONE = ("none", "empty")


def tables(heading: str) -> dict[str, str]:
    """The rows of all tables whose first column has that heading: name and default."""
    found: dict[str, str] = {}
    for table in re.findall(rf"^\| {re.escape(heading)} \| default \|.*\n\|---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE):
        for name, default in ROW.findall(table):
            assert name not in found, f"{name} is there twice"
            found[name] = default.strip().strip("`")
    return found


def is_shown_as(value: object, shown: str) -> bool:
    """Whether a page that shows this means the value."""
    if value is None or value in ("", [], ()):
        return shown in NONE
    if isinstance(value, bool):
        return shown == str(value).lower()
    if isinstance(value, int):
        return shown.replace(",", "") == str(value)
    return shown == str(value)


def options(function: Callable[..., object]) -> dict[str, object]:
    """The keywords of a function with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}


def check(expected: Mapping[str, object], shown: Mapping[str, str]) -> None:
    assert sorted(shown.keys() - expected.keys()) == [], "the page names what is not there"
    assert sorted(expected.keys() - shown.keys()) == [], "the page does not name these"
    wrong = {name: (shown[name], value) for name, value in expected.items() if not is_shown_as(value, shown[name])}
    assert wrong == {}, "the page has another default"


SETTINGS_SHOWN = tables("setting")
TOPIC_SETTINGS = TopicConfig().settings()


def test_every_setting_of_the_server_is_there_with_its_default() -> None:
    default = ServerConfig()
    expected = {
        name: setting.kind.show(setting.value_in(default))
        for name, setting in SETTINGS.items()
        if not setting.is_topic_setting
    }

    check(expected, {name: shown for name, shown in SETTINGS_SHOWN.items() if name not in TOPIC_SETTINGS})


def test_every_setting_of_a_topic_is_there_with_its_default() -> None:
    shown = {name: default for name, default in SETTINGS_SHOWN.items() if name in TOPIC_SETTINGS}

    check(TOPIC_SETTINGS, shown)


def test_every_environment_variable_is_there_with_its_default() -> None:
    source = Path(goqueue.__file__).parent
    read = {name for file in source.rglob("*.py") for name in VARIABLE.findall(file.read_text())}
    clean = {
        "GOQUEUE_SERVER": "localhost:7000",
        "GOQUEUE_TELEMETRY": "on",
        "GOQUEUE_BUSY_POLL": format_duration(environment.BUSY_POLL_NS),
        "GOQUEUE_KERNEL": "auto",
    }

    check({name: clean.get(name) for name in read - VARIABLES.keys()}, tables("variable"))


@pytest.mark.parametrize("what", ["Client", "producer", "consumer", "consume"])
def test_every_option_of_the_client_is_there_with_its_default(what: str) -> None:
    expected = options(Client.__init__ if what == "Client" else getattr(Client, what))
    if what == "consume":  # the others are those of a consumer
        shared = options(Client.consumer)
        assert {name: expected[name] for name in expected if name in shared}.items() <= shared.items()
        assert sorted(shared.keys() - expected.keys()) == ["assignor", "protocol", "session_timeout"]
        expected = {name: default for name, default in expected.items() if name not in shared}

    check(expected, tables(f"option of `{what}`"))
