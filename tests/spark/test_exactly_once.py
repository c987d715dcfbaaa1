"""A stream from topic to topic is killed at random moments: driver, Python worker, broker. Each input comes out once.

`GOQUEUE_KILLS=30` makes it thirty kills; or run `python -m tests.spark.kill_streams`.
"""

import os
import random
from pathlib import Path

import pytest

from tests.spark.kill_streams import BROKER, DRIVER, WORKER, run

SEED = 11
KILLS = int(os.environ.get("GOQUEUE_KILLS") or 3)


@pytest.mark.spark
def test_each_input_comes_out_once_and_in_order_whatever_is_killed(tmp_path: Path) -> None:
    kinds = random.Random(SEED).choices((BROKER, WORKER, DRIVER), weights=(5, 5, 2), k=max(0, KILLS - 3))

    report = run(tmp_path, [WORKER, BROKER, DRIVER, *kinds][:KILLS], seed=SEED)

    assert report.copied > 0
