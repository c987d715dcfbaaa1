"""Clients do not notice that partitions change their leaders all the time."""

import pytest

from tests.crash.role_flapping import FlappingConfig, flap


@pytest.mark.parametrize("flush", ["group", "interval"])
def test_clients_lose_and_double_nothing_while_leaders_change(flush: str) -> None:
    report = flap(FlappingConfig(flush=flush, seconds=4))

    assert report.changes > 30
    assert report.published > 100
