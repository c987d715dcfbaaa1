"""The client without an event loop is derived from the other one, and neither has anything that the other lacks.

`scripts/derive-client` writes sync.py and sync_admin.py; both are held against what it writes now.
"""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from goqueue import AsyncClient, Client
from goqueue.client import producer as producers

ROOT = Path(__file__).parents[2]


def test_the_client_without_a_loop_is_derived_from_the_other_one() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "scripts/derive-client"), "--check"], check=False)

    assert done.returncode == 0


def public(client: type) -> dict[str, inspect.Signature]:
    methods = inspect.getmembers(client, inspect.isfunction)
    return {name: inspect.signature(value) for name, value in methods if name[0] != "_" or name == "__init__"}


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    plain, asynchronous = public(Client), public(AsyncClient)
    for name in (
        "blocking_publisher",
        "connection_pool",
        "kept_by",
        "leave",
        "end",
        "unstored",
    ):  # what the other one is made of
        del asynchronous[name]

    assert plain.keys() == asynchronous.keys()
    for name, signature in plain.items():
        assert list(signature.parameters.values()) == list(asynchronous[name].parameters.values()), name


@pytest.mark.parametrize("kinds", [("Producer", "AsyncProducer"), ("Handle", "AsyncHandle")])
def test_what_they_hand_out_has_the_same_methods_with_the_same_arguments(kinds: tuple[str, str]) -> None:
    plain, asynchronous = (public(getattr(producers, kind)) for kind in kinds)
    for methods in (plain, asynchronous):
        methods.pop("__init__", None)
        methods.pop("blocking", None)

    assert plain.keys() == asynchronous.keys()
    for name in plain:
        assert list(plain[name].parameters) == list(asynchronous[name].parameters)
