"""What a member may ask for."""

import pytest

from goqueue.errors import InvalidConfig, InvalidRequest
from goqueue.groups.config import GroupConfig
from goqueue.groups.member import validate_join
from goqueue.service.groups import Join

GOOD = Join("billing-app", ("orders",))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"client_id": "c" * 255},
        {"client_id": "Büro 7 (нет)"},
        {"member_id": "m"},
        {"session_timeout_ms": 1_000},
        {"session_timeout_ms": 3_600_000},
        {"mode": "key-shared", "protocol": "eager", "assignor": "range", "start": "latest", "ack": "offsets"},
        {"visibility_timeout_ms": 1, "max_in_flight": 1},
        {"visibility_timeout_ms": 43_200_000},
    ],
)
def test_what_is_allowed_is_accepted(change: dict[str, object]) -> None:
    validate_join(GOOD._replace(**change), GroupConfig())


@pytest.mark.parametrize(
    ("change", "path", "text"),
    [
        ({"client_id": ""}, "client_id", "client_id is required"),
        ({"client_id": "c" * 256}, "client_id", "client_id must be 1 to 255 printable characters without /"),
        ({"client_id": "a/b"}, "client_id", "without /"),
        ({"client_id": "a\nb"}, "client_id", "printable"),
        ({"client_id": "a\0"}, "client_id", "printable"),
        ({"member_id": ""}, "member_id", "member_id is required"),
        ({"member_id": "a/b"}, "member_id", "without /"),
        ({"topics": ()}, "topics", "at least one topic is required"),
        ({"topics": ("t",) * 1_001}, "topics", "over the limit of 1000"),
        ({"session_timeout_ms": 999}, "session_timeout", "1000 to 3600000 ms"),
        ({"session_timeout_ms": 3_600_001}, "session_timeout", "1000 to 3600000 ms"),
        ({"mode": "share"}, "mode", "invalid mode 'share': must be one of partitioned, shared, key-shared"),
        ({"protocol": ""}, "protocol", "must be one of cooperative, eager"),
        ({"assignor": "Sticky"}, "assignor", "must be one of sticky, range, roundrobin"),
        ({"start": "offset"}, "start", "must be one of earliest, latest"),
        ({"ack": "each"}, "ack", "must be one of messages, offsets"),
        ({"visibility_timeout_ms": 0}, "visibility_timeout", "positive"),
        ({"visibility_timeout_ms": 43_200_001}, "visibility_timeout", "at most 12h"),
        ({"max_in_flight": 0}, "max_in_flight", "positive"),
    ],
)
def test_what_is_not_is_refused_and_named(change: dict[str, object], path: str, text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validate_join(GOOD._replace(**change), GroupConfig())

    assert refused.value.path == path
    assert text in str(refused.value)


@pytest.mark.parametrize("setting", ["groups_max", "members_max", "heartbeat_interval_ms", "expired_max"])
def test_every_bound_is_positive(setting: str) -> None:
    with pytest.raises(InvalidConfig):
        GroupConfig(**{setting: 0})


def test_the_shortest_session_is_not_above_the_longest() -> None:
    with pytest.raises(InvalidConfig):
        GroupConfig(session_timeout_ms_min=5_000, session_timeout_ms_max=4_999)
