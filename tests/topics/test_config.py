from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.errors import Forbidden, InvalidTopic
from goqueue.storage.config import Cleanup, Flush
from goqueue.topics.config import (
    Acks,
    Compression,
    OnExpire,
    SchemaValidation,
    TopicConfig,
    merge,
    validate_topic_name,
)

DEFAULTS: dict[str, object] = {
    "cleanup": "delete",
    "retention": "168h",
    "retention_bytes": 0,
    "segment_bytes": 67_108_864,
    "segment_age": "168h",
    "flush": "group",
    "flush_interval": "1s",
    "min_insync_replicas": 1,
    "acks": "all",
    "compression": "none",
    "verify_compression": "off",
    "max_message_bytes": 16_777_216,
    "partitioner": "murmur3",
    "visibility_timeout": "30s",
    "max_deliveries": 3,
    "backoff_initial": "1s",
    "backoff_max": "1m",
    "max_in_flight": 1000,
    "dead_letter_topic": "<topic>.dlq",
    "ttl": "none",
    "on_expire": "drop",
    "priority_mode": "weighted",
    "priority_weights": [50, 25, 15, 7, 3],
    "priority_boost": "30s",
    "schema_validation": "auto",
    "trace_sample_rate": 1.0,
    "tombstone_retention": "24h",
    "dirty_ratio": 0.5,
}


def test_a_topic_without_settings_has_all_of_them_at_their_defaults() -> None:
    config = TopicConfig.parse({})

    assert config == TopicConfig()
    assert config.settings() == DEFAULTS


def test_the_public_form_of_all_settings_is_read_as_the_same_settings() -> None:
    assert TopicConfig.parse(DEFAULTS) == TopicConfig()


def test_settings_are_taken_in_their_public_form() -> None:
    config = TopicConfig.parse(
        {
            "cleanup": "compact,delete",
            "retention": "7d",
            "flush": "interval",
            "flush_interval": "250ms",
            "acks": "leader",
            "compression": "zstd",
            "ttl": "1h30m",
            "on_expire": "dead_letter",
            "schema_validation": "required",
            "trace_sample_rate": 0,
            "segment_bytes": 1024,
        }
    )

    assert config == TopicConfig(
        cleanup=Cleanup.COMPACT_DELETE,
        retention_ms=7 * 86_400_000,
        flush=Flush.INTERVAL,
        flush_interval_ms=250,
        acks=Acks.LEADER,
        compression=Compression.ZSTD,
        ttl_ms=5_400_000,
        on_expire=OnExpire.DEAD_LETTER,
        schema_validation=SchemaValidation.REQUIRED,
        trace_sample_rate=0.0,
        segment_bytes=1024,
    )


@pytest.mark.parametrize("none", [None, "none"])
def test_no_ttl_is_written_in_two_ways(none: object) -> None:
    assert TopicConfig.parse({"ttl": none}).ttl_ms is None


def test_dead_letters_go_to_the_topic_of_that_name_unless_another_is_set() -> None:
    assert TopicConfig().dead_letter_topic_of("orders") == "orders.dlq"
    assert TopicConfig().dead_letter_topic_of("orders.dlq") == "orders.dlq"
    assert TopicConfig.parse({"dead_letter_topic": "graveyard"}).dead_letter_topic_of("orders") == "graveyard"
    assert TopicConfig.parse({"dead_letter_topic": "<topic>.dlq"}) == TopicConfig()


def test_a_retention_of_nothing_is_for_ever() -> None:
    config = TopicConfig.parse({"retention": "0s"})

    assert config.retention_ms == 0
    assert config.settings()["retention"] == "0s"


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [
        ("cleanup", "Delete", "one of delete compact compact,delete"),
        ("cleanup", None, "one of"),
        ("dead_letter_topic", "__groups", "not internal"),
        ("dead_letter_topic", "a/b", "name of a topic"),
        ("dead_letter_topic", "", "name of a topic"),
        ("dead_letter_topic", 5, "name of a topic"),
        ("retention", 168, "text like"),
        ("retention", "168", "text like"),
        ("retention", "-1s", "from 0s"),
        ("retention", "1.5ms", "whole milliseconds"),
        ("retention", "2600000h", "to 2500000h"),
        ("retention", None, "text like"),
        ("retention_bytes", -1, "from 0"),
        ("retention_bytes", 1.0, "whole number"),
        ("segment_bytes", 1023, "from 1024 to 1073741824"),
        ("segment_bytes", 1024**3 + 1, "from 1024 to 1073741824"),
        ("segment_bytes", "64MiB", "whole number"),
        ("segment_bytes", True, "whole number"),
        ("segment_bytes", 10**5_000, "whole number"),
        ("flush", "always", "one of group interval none"),
        ("flush_interval", "0s", "from 1ms"),
        ("min_insync_replicas", 0, "from 1"),
        ("acks", 1, "one of none leader all"),
        ("compression", "gzip", "one of none zstd lz4"),
        ("max_message_bytes", 2**31, "from 1 to 2147483647"),
        ("visibility_timeout", "0s", "from 1ms"),
        ("max_deliveries", 0, "from 1"),
        ("max_in_flight", 0, "from 1"),
        ("ttl", "0s", "or none"),
        ("ttl", "never", "or none"),
        ("on_expire", "delete", "one of drop dead_letter"),
        ("schema_validation", True, "one of auto off required"),
        ("trace_sample_rate", 1.1, "from 0 to 1"),
        ("trace_sample_rate", float("nan"), "from 0 to 1"),
        ("trace_sample_rate", True, "from 0 to 1"),
        ("dirty_ratio", 0, "above 0 to 1"),
        ("retention_ms", 1, "no such setting; did you mean retention?"),
        ("colour", 1, "no such setting; known are cleanup, retention, "),
        ("Retention", "1h", "no such setting"),
    ],
    ids=lambda value: str(value) if not isinstance(value, int) else "number",
)
def test_a_setting_that_cannot_be_is_refused_and_says_what_can(setting: str, value: Any, allowed: str) -> None:
    with pytest.raises(InvalidTopic) as caught:
        TopicConfig.parse({"segment_bytes": 4096, setting: value}, topic="orders")

    assert caught.value.facts()["setting"] == setting
    assert caught.value.name == "orders"
    assert allowed in caught.value.reason
    assert setting in str(caught.value)


def test_the_log_of_a_partition_goes_by_the_settings_of_its_topic() -> None:
    config = TopicConfig.parse({"segment_bytes": 4096, "max_message_bytes": 100, "flush": "none", "cleanup": "compact"})

    log = config.log_config()

    assert (log.segment_bytes, log.value_bytes_max, log.flush, log.cleanup) == (4096, 100, "none", "compact")


@pytest.mark.parametrize(
    ("retention", "cleanup", "age_ms"),
    [
        ("0s", "delete", 7 * 86_400_000),
        ("1h", "delete", 3_600_000),
        ("1h", "compact,delete", 3_600_000),
        ("1h", "compact", 7 * 86_400_000),
        ("30d", "delete", 7 * 86_400_000),
        ("1ms", "delete", 1_000),
    ],
)
def test_a_segment_is_sealed_before_its_records_are_due_to_go(retention: str, cleanup: str, age_ms: int) -> None:
    assert TopicConfig.parse({"retention": retention, "cleanup": cleanup}).log_config().segment_age_ms == age_ms


def test_a_ledger_is_compacted_kept_for_ever_and_as_safe_as_its_log() -> None:
    ledger = TopicConfig.parse({"flush": "interval", "flush_interval": "5s", "retention": "1h"}).ledger_config()

    assert (ledger.cleanup, ledger.retention_ms, ledger.segment_bytes) == ("compact", 0, 2 * 1024 * 1024)
    assert (ledger.flush, ledger.flush_interval_ms) == ("interval", 5_000)


def test_changes_are_merged_and_none_takes_a_setting_back() -> None:
    explicit = {"retention": "1h", "acks": "leader"}

    merged = merge(explicit, {"acks": None, "ttl": "5s", "flush": None})

    assert merged == {"retention": "1h", "ttl": "5s"}
    assert explicit == {"retention": "1h", "acks": "leader"}


def test_taking_back_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidTopic, match="no such setting"):
        merge({}, {"colour": None}, topic="orders")


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "retention": st.integers(0, 9 * 10**12).map(lambda ms: f"{ms}ms"),
            "ttl": st.integers(1, 9 * 10**12).map(lambda ms: f"{ms}ms"),
            "segment_bytes": st.integers(1024, 1024**3),
            "trace_sample_rate": st.floats(0, 1),
            "cleanup": st.sampled_from(list(Cleanup)).map(str),
        },
    )
)
def test_what_is_shown_is_read_as_the_same(settings: dict[str, object]) -> None:
    config = TopicConfig.parse(settings)

    assert TopicConfig.parse(config.settings()) == config
    config.log_config()
    config.ledger_config()


@pytest.mark.parametrize("name", ["orders", "a", "A-Z.a_z-0.9", "orders.dlq", "_x", "...", "x" * 249, "-"])
def test_a_name_of_allowed_letters_is_taken(name: str) -> None:
    validate_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "a~b", "x" * 250, "a\n", "a\0", "٣"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(InvalidTopic, match="must be 1 to 249"):
        validate_topic_name(name, internal_ok=True)


def test_names_of_internal_topics_are_not_for_users() -> None:
    with pytest.raises(Forbidden, match="internal"):
        validate_topic_name("__groups")

    validate_topic_name("__groups", internal_ok=True)


@pytest.mark.parametrize("weights", [[1, 2, 3, 4], [0, 1, 1, 1, 1], "50/25/15/7/3", [1, 1, 1, 1, 1.5], [True] * 5, 7])
def test_weights_that_are_no_five_whole_numbers_are_refused(weights: object) -> None:
    with pytest.raises(InvalidTopic, match="priority_weights"):
        TopicConfig.parse({"priority_weights": weights})


def test_weights_are_shown_as_they_were_given() -> None:
    assert TopicConfig.parse({"priority_weights": [5, 4, 3, 2, 1]}).settings()["priority_weights"] == [5, 4, 3, 2, 1]
