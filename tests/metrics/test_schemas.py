"""The series about schemas: they move with their event, are there from the beginning, and go with their topic."""

from goqueue import events
from goqueue.metrics.registry import Metrics

SUCCESS = 'goqueue_broker_schema_validations_total{result="success",topic="t"}'
FAILURE = 'goqueue_broker_schema_validations_total{result="failure",topic="t"}'
COUNT = 'goqueue_broker_schema_validation_latency_seconds_count{topic="t"}'
SUM = 'goqueue_broker_schema_validation_latency_seconds_sum{topic="t"}'


def values(metrics: Metrics) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in metrics.render(False)[0].decode().splitlines() if "schema_valid" in line)
    return {name: float(value) for name, _, value in lines if name in (SUCCESS, FAILURE, COUNT, SUM)}


def test_a_batch_counts_by_its_messages_and_is_timed_once() -> None:
    metrics = Metrics()
    metrics.observe(events.TopicCreated("t", 1, False))
    assert values(metrics) == {SUCCESS: 0, FAILURE: 0, COUNT: 0, SUM: 0}

    metrics.observe(events.SchemaChecked("t", 7, 2, 10**6))
    metrics.observe(events.SchemaChecked("t", 1, 0, 10**6))

    assert values(metrics) == {SUCCESS: 8, FAILURE: 2, COUNT: 2, SUM: 0.002}


def test_the_series_go_with_their_topic_and_internal_topics_have_none() -> None:
    metrics = Metrics()
    metrics.observe(events.TopicCreated("t", 1, False))
    metrics.observe(events.TopicCreated("__schemas", 1, True))
    assert 'topic="__schemas"' not in "".join(
        line for line in metrics.render(False)[0].decode().splitlines() if "schema_valid" in line
    )

    metrics.observe(events.TopicDeleted("t", False))
    metrics.observe(events.TopicDeleted("__schemas", True))

    assert values(metrics) == {}
