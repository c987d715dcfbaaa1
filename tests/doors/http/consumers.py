"""Consumers that speak HTTP: the few requests that most tests of groups begin with."""

from typing import Any
from urllib.parse import quote, urlencode

from tests.doors.http.doors import Answer, OpenDoor


def publish(door: OpenDoor, *values: str, topic: str = "orders", **fields: Any) -> list[dict[str, Any]]:
    """Store messages that differ in their values only; the results."""
    answer = door.post(f"/topics/{topic}/messages", {"messages": [{"value": value, **fields} for value in values]})
    assert (answer.status, answer.json["failed"]) == (200, 0)
    results: list[dict[str, Any]] = answer.json["results"]
    return results


def join(door: OpenDoor, group: str = "billing", *, path: str = "join", **fields: Any) -> dict[str, Any]:
    """A new member of the group, as the answer describes it."""
    answer = door.post(f"/groups/{quote(group)}/{path}", {"client_id": "worker", "topics": ["orders"], **fields})
    assert answer.status == 200, answer.body
    joined: dict[str, Any] = answer.json
    return joined


def poll_path(member: dict[str, Any] | str, group: str = "billing", **query: Any) -> str:
    """Where the member polls, without waiting unless it says so."""
    member_id = member if isinstance(member, str) else member["member_id"]
    return f"/groups/{quote(group)}/poll?{urlencode({'member_id': member_id, 'wait': '0s', **query})}"


def poll(door: OpenDoor, member: dict[str, Any] | str, group: str = "billing", **query: Any) -> dict[str, Any]:
    """What there is for the member now."""
    answer = door.get(poll_path(member, group, **query))
    assert answer.status == 200, answer.body
    polled: dict[str, Any] = answer.json
    return polled


def take(door: OpenDoor, member: dict[str, Any] | str, group: str = "billing", **query: Any) -> list[dict[str, Any]]:
    """The messages that there are for the member now."""
    messages: list[dict[str, Any]] = poll(door, member, group, **query)["messages"]
    return messages


def values(polled: dict[str, Any]) -> list[str]:
    return [message["value"] for message in polled["messages"]]


def settle(door: OpenDoor, verb: str, message: dict[str, Any], **fields: Any) -> Answer:
    """Settle one message."""
    return door.post(f"/messages/{verb}", {"receipt_handle": message["receipt_handle"], **fields})
