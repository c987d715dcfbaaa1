"""What is asked of the sink is understood, or refused in one sentence that names the option."""

import pytest

from goqueue.errors import GoQueueError, InvalidConfig, InvalidRequest
from goqueue.spark.sink_options import SinkOptions


def parse(**options: str) -> SinkOptions:
    return SinkOptions.parse({"server": "localhost:7000", **options})


def test_little_is_required() -> None:
    options = SinkOptions.parse({"server": "a:1,b:2", "topic": "t"})
    assert options.server == "a:1,b:2"
    assert options.topic == "t"
    assert {options.transactional_id, options.marker, options.rate, options.compression} == {None}
    assert options.transaction_timeout_ms == 60_000
    assert not options.is_json


def test_everything_can_be_asked_for_in_any_case() -> None:
    options = parse(
        APIKEY="secret",
        Topic=" t ",
        transactionalid="job",
        MARKER="2026-11-15",
        valueformat="json",
        RATE="2.5",
        transactiontimeout="1m30s",
        compression="zstd",
        tls="FALSE",
    )
    assert options == SinkOptions(
        server="localhost:7000",
        api_key="secret",
        topic="t",
        transactional_id="job",
        marker="2026-11-15",
        is_json=True,
        rate=2.5,
        transaction_timeout_ms=90_000,
        compression="zstd",
    )
    assert "secret" not in repr(options)


def test_what_is_empty_was_not_given() -> None:
    assert parse(topic="", transactionalId=" ", rate="", tls="", valueFormat="") == parse()


def test_what_is_sparks_own_is_left_alone() -> None:
    assert parse(checkpointLocation="/tmp/x", path="y", **{"spark.foo": "1"}) == parse()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"topics": "t"}, "unknown option topics: did you mean topic?"),
        ({"subscribe": "t"}, "did you mean topic?"),
        ({"transactionId": "t"}, "did you mean transactionalId?"),
        ({"banana": "t"}, "unknown option banana: the options of the sink are server, apiKey"),
        ({"x" * 1000: "t"}, r"x{100}\.\.\."),
        ({"server": "nowhere"}, "server = 'nowhere': must be host:port"),
        ({"server": ","}, "server = ',': must be host:port"),
        ({"tls": "true"}, "tls = True: the client does not speak TLS yet"),
        ({"tls": "maybe"}, "tls = 'maybe': must be true or false"),
        ({"valueFormat": "avro"}, "valueFormat = 'avro': must be json"),
        ({"compression": "gzip"}, "compression = 'gzip': must be one of none, zstd, lz4"),
        ({"rate": "fast"}, "rate = 'fast': must be a number"),
        ({"rate": "0"}, "rate = '0'"),
        ({"rate": "-5"}, "rate = '-5'"),
        ({"rate": "nan"}, "rate = 'nan'"),
        ({"rate": "inf"}, "rate = 'inf'"),
        ({"transactionTimeout": "soon"}, "transactionTimeout = 'soon'"),
        ({"transactionTimeout": "16m"}, "transactionTimeout = '16m': must be more than 0 and at most 15m"),
        ({"transactionTimeout": "0s"}, "transactionTimeout = '0s'"),
        ({"transactionalId": "a" * 201}, "transactionalId = .*must be 1 to 200 printable"),
        ({"transactionalId": "a\nb"}, "transactionalId = .*printable"),
        ({"marker": "a" * 501}, "marker = .*must be 1 to 500 printable"),
    ],
)
def test_what_is_wrong_is_told_by_name(options: dict[str, str], match: str) -> None:
    with pytest.raises(GoQueueError, match=match) as refused:
        parse(**options)
    assert isinstance(refused.value, InvalidConfig | InvalidRequest)
    assert "\n" not in str(refused.value)


def test_a_marker_needs_somebody_whose_it_is() -> None:
    parse(marker="m", transactionalId="x").check_batch()
    parse().check_batch()
    with pytest.raises(InvalidConfig, match="needs a transactionalId"):
        parse(marker="m").check_batch()


def test_a_stream_has_markers_of_its_own() -> None:
    parse(transactionalId="x").check_stream()
    with pytest.raises(InvalidConfig, match="is for batch writes"):
        parse(marker="m", transactionalId="x").check_stream()
