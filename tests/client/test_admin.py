"""Verbs about topics and the broker, as an application calls them. Those of other nouns: test_admin_*.py."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from goqueue import Client, InvalidRequest, InvalidTopic, TopicExists, TopicNotFound


def test_a_topic_is_made_described_altered_listed_and_deleted(gq: Client) -> None:
    made = gq.create_topic("orders", partitions=6, retention="7d")

    assert (made.name, len(made.partitions), made.settings["retention"]) == ("orders", 6, "168h")
    assert gq.describe_topic("orders") == made
    assert gq.alter_topic("orders", retention="1h").settings["retention"] == "1h"
    assert gq.alter_topic("orders", {"retention": None}).settings["retention"] == "168h"
    assert gq.topics() == ["orders"]
    assert set(gq.topics(internal=True)) >= {"orders"}
    gq.delete_topic("orders")
    assert gq.topics() == []


def test_a_topic_that_exists_is_no_matter_if_that_is_said(gq: Client) -> None:
    made = gq.create_topic("t", partitions=2)

    with pytest.raises(TopicExists) as caught:
        gq.create_topic("t", partitions=2)

    assert (caught.value.topic, caught.value.code, caught.value.retryable) == ("t", "TOPIC_ALREADY_EXISTS", False)
    assert gq.create_topic("t", partitions=2, exist_ok=True) == made


def test_a_topic_that_is_missing_is_no_matter_if_that_is_said(gq: Client) -> None:
    with pytest.raises(TopicNotFound):
        gq.delete_topic("nowhere")
    gq.delete_topic("nowhere", missing_ok=True)


@pytest.mark.parametrize("duration", ["90m", "1h30m", 5400, 5400.0, timedelta(minutes=90)])
def test_a_duration_in_a_setting_may_be_written_in_any_way(gq: Client, duration: Any) -> None:
    assert gq.create_topic("t", retention=duration).settings["retention"] == "1h30m"


def test_a_topic_setting_that_cannot_be_is_refused_with_its_name(gq: Client) -> None:
    with pytest.raises(InvalidTopic) as caught:
        gq.create_topic("t", cleanup="sometimes")
    with pytest.raises(InvalidTopic):
        gq.create_topic("no/name")

    assert caught.value.setting == "cleanup"
    assert "sometimes" in str(caught.value)


def test_offsets_are_those_of_a_time(gq: Client) -> None:
    gq.create_topic("t", partitions=2)
    for number in range(4):
        gq.publish("t", b"%d" % number, partition=0)
    third = list(gq.read("t", partition=0))[2].timestamp_ns

    assert gq.offsets("t") == [4, 0]
    assert gq.offsets("t", time="earliest") == [0, 0]
    assert gq.offsets("t", time="latest") == [4, 0]
    assert gq.offsets("t", time="1h ago") == [0, 0]
    assert gq.offsets("t", time=datetime(2100, 1, 1, tzinfo=UTC)) == [4, 0]
    assert gq.offsets("t", time="2001-01-01T00:00:00Z") == [0, 0]
    assert gq.offsets("t", time=1_000_000_000) == [0, 0]
    text = f"{third // 10**9}.{third % 10**9:09d}"
    assert gq.offsets("t", time=text) == [2, 0]
    with pytest.raises(InvalidRequest):
        gq.offsets("t", time="whenever")
    with pytest.raises(InvalidRequest):
        gq.offsets("t", time=datetime(2024, 1, 1))


def test_stats_say_what_the_broker_costs(gq: Client) -> None:
    gq.create_topic("t")

    stats = gq.stats()

    assert stats.topic_count >= 1
    assert stats.rss_bytes > 0
