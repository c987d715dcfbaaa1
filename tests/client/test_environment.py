"""Defaults from environment variables."""

import os
from collections.abc import Iterator

import pytest

from goqueue.client import environment
from goqueue.clock import MS
from goqueue.errors import InvalidConfig

NAMES = ("GOQUEUE_SERVER", "GOQUEUE_TELEMETRY", "GOQUEUE_BUSY_POLL", "GOQUEUE_API_KEY")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    before = {name: os.environ.pop(name, None) for name in NAMES}
    yield
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def test_without_variables_the_broker_is_the_local_one() -> None:
    assert environment.default_server() == "localhost:7000"
    assert environment.default_api_key() == ""
    assert environment.default_telemetry()
    assert environment.default_busy_poll_ns() == environment.BUSY_POLL_NS


def test_variables_replace_the_defaults() -> None:
    os.environ.update(GOQUEUE_SERVER="a:1,b:2", GOQUEUE_API_KEY="key", GOQUEUE_BUSY_POLL="2ms")

    assert environment.default_server() == "a:1,b:2"
    assert environment.default_api_key() == "key"
    assert environment.default_busy_poll_ns() == 2 * MS


@pytest.mark.parametrize("word", ["off", "OFF", "false", "no", "0"])
def test_telemetry_is_switched_off_by_any_word_for_no(word: str) -> None:
    os.environ["GOQUEUE_TELEMETRY"] = word

    assert not environment.default_telemetry()


@pytest.mark.parametrize("text", ["soon", "1s", "-1ms"])
def test_a_busy_poll_that_makes_no_sense_names_the_variable(text: str) -> None:
    os.environ["GOQUEUE_BUSY_POLL"] = text

    with pytest.raises(InvalidConfig, match="GOQUEUE_BUSY_POLL"):
        environment.default_busy_poll_ns()
