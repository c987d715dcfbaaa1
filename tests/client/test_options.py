"""Keywords that several methods share: each shows them, and takes what the broker takes."""

import inspect
from typing import get_type_hints

import pytest

from goqueue import AsyncClient, AsyncTransaction, Client, Transaction
from goqueue.client.options import MessageOptions, TopicSettings, same_parameters_as, shows
from goqueue.client.producer import AsyncProducer, Producer
from goqueue.topics.config import TopicConfig


@pytest.mark.parametrize("owner", [Client, AsyncClient, Transaction, AsyncTransaction], ids=lambda one: one.__name__)
def test_publish_shows_every_keyword_of_a_message(owner: type) -> None:
    shown = inspect.signature(owner.publish).parameters  # type: ignore[attr-defined]

    assert list(shown) == ["self", "topic", "value", *get_type_hints(MessageOptions)]
    assert {one.kind for name, one in shown.items() if name in get_type_hints(MessageOptions)} == {
        inspect.Parameter.KEYWORD_ONLY
    }
    assert shown["key"].default is None
    assert shown["tombstone"].default is False


@pytest.mark.parametrize("send", [Producer.send, AsyncProducer.send, Transaction.send, AsyncTransaction.send])
def test_send_takes_the_same_keywords_as_publish(send: object) -> None:
    assert callable(send)
    assert set(inspect.signature(send).parameters) == {"self", "topic", "value", *get_type_hints(MessageOptions)}


def test_the_settings_of_a_topic_are_those_of_the_broker() -> None:
    assert set(get_type_hints(TopicSettings)) == set(TopicConfig().settings())


@pytest.mark.parametrize("name", ["create_topic", "alter_topic"])
def test_topic_methods_show_every_setting(name: str) -> None:
    shown = inspect.signature(getattr(Client, name)).parameters

    assert set(get_type_hints(TopicSettings)) <= set(shown)
    assert all(one.kind is not one.VAR_KEYWORD for one in shown.values())


def test_the_keywords_follow_what_the_method_takes_besides() -> None:
    @shows(MessageOptions)
    def method(first: int, *, last: str = "", **options: object) -> None:
        assert options == {"key": b"k"}

    assert list(inspect.signature(method).parameters)[:3] == ["first", "last", "key"]
    method(1, key=b"k")


def test_a_method_that_passes_its_arguments_on_has_the_signature_of_the_other() -> None:
    class Original:
        def method(self, first: int, *, last: str = "") -> str:
            return f"{first}{last}"

    class Copy:
        @same_parameters_as(Original.method)
        def method(self, *arguments: object, **options: object) -> tuple[object, object]:
            return arguments, options

    assert inspect.signature(Copy.method) == inspect.signature(Original.method)
    assert Copy().method(1, last="x") == ((1,), {"last": "x"})
