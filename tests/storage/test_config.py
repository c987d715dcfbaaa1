import pytest

from goqueue.errors import InvalidConfig
from goqueue.storage.config import Cleanup, Flush, LogConfig


def test_modes_may_be_given_by_name() -> None:
    config = LogConfig(flush="interval", cleanup="compact,delete")  # type: ignore[arg-type]

    assert config.flush is Flush.INTERVAL
    assert config.cleanup is Cleanup.COMPACT_DELETE
    assert config.compacts
    assert config.deletes


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("segment_bytes", 0),
        ("segment_bytes", "64"),
        ("segment_bytes", 1.5),
        ("segment_bytes", True),
        ("segment_age_ms", float("nan")),
        ("retention_ms", None),
        ("retention_ms", -1),
        ("retention_bytes", 10**18),
        ("value_bytes_max", 2**31),
        ("dirty_ratio", 0),
        ("dirty_ratio", 1.5),
        ("dirty_ratio", "half"),
        ("flush", "always"),
        ("cleanup", None),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(InvalidConfig) as caught:
        LogConfig(**{setting: value})  # type: ignore[arg-type]

    assert (caught.value.setting, caught.value.value) == (setting, value)
    assert str(caught.value).startswith(f"{setting} = ")


@pytest.mark.parametrize("setting", ["retention_ms", "retention_bytes", "tombstone_retention_ms"])
def test_some_settings_may_be_zero(setting: str) -> None:
    assert getattr(LogConfig(**{setting: 0}), setting) == 0  # type: ignore[arg-type]
