"""Settings of a broker that make no sense are refused by name."""

import pytest

from goqueue.broker.config import BrokerConfig
from goqueue.errors import InvalidConfig


@pytest.mark.parametrize("setting", ["default_partitions", "maintenance_interval_ms", "compactions_max", "waiting_max"])
def test_a_configuration_that_cannot_be_is_refused(setting: str) -> None:
    with pytest.raises(InvalidConfig):
        BrokerConfig(**{setting: 0})  # type: ignore[arg-type]


def test_the_refusal_names_the_setting_and_its_value() -> None:
    with pytest.raises(InvalidConfig, match="must not be negative") as refused:
        BrokerConfig(node_id=-1)

    assert (refused.value.setting, refused.value.value) == ("node_id", -1)
    assert BrokerConfig(node_id=0).node_id == 0
