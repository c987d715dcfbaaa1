"""A broker is killed with thousands of delays, leases and retries pending: each comes when it is due, and once."""

from pathlib import Path

import pytest

from tests.crash.pending import PendingConfig, kill_while_pending


@pytest.mark.parametrize("flush", ["group", "interval"])
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_pending_comes_when_it_is_due_and_once_though_the_broker_is_killed(
    tmp_path: Path, flush: str, seed: int
) -> None:
    report = kill_while_pending(PendingConfig(flush=flush, seed=seed), tmp_path)

    print(report)
    assert report.delivered >= 6_000
