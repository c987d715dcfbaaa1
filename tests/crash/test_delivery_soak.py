"""Twenty consumers do all that consumers do, and some are killed: each message is acknowledged or dead, once."""

from pathlib import Path

import pytest

from tests.crash.soak import SoakConfig, soak


def test_every_message_ends_once_whatever_twenty_consumers_do(tmp_path: Path) -> None:
    report = soak(SoakConfig(messages=10_000, seconds=4, partitions=24), tmp_path)

    print(report)
    assert report.redelivered > 100
    assert report.dead.keys() == {"REJECTED", "MAX_DELIVERIES", "TIMEOUT"}
    assert report.rebalances > 10


def test_every_message_ends_once_when_all_share_three_partitions(tmp_path: Path) -> None:
    report = soak(SoakConfig(messages=5_000, seconds=3, partitions=3, mode="shared", seed=2), tmp_path)

    print(report)
    assert report.redelivered > 50


def test_every_message_ends_once_and_keys_keep_their_order(tmp_path: Path) -> None:
    config = SoakConfig(messages=5_000, seconds=3, partitions=3, mode="key-shared", keys=50, batch_max=30, seed=3)

    report = soak(config, tmp_path)

    print(report)
    assert report.redelivered > 50


@pytest.mark.parametrize(
    ("mode", "flush"),
    [("partitioned", "group"), ("partitioned", "interval"), ("shared", "group"), ("key-shared", "interval")],
)
def test_every_message_ends_once_though_the_broker_is_killed(tmp_path: Path, mode: str, flush: str) -> None:
    config = SoakConfig(
        messages=4_000,
        seconds=5,
        partitions=24 if mode == "partitioned" else 3,
        mode=mode,
        keys=50 if mode == "key-shared" else 0,
        flush=flush,
        broker_kills=2,
        worker_kills=3,
        batch_max=20,
        seed=4,
    )

    report = soak(config, tmp_path)

    print(report)
    assert report.brokers >= 2
