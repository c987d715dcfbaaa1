"""A message that is to be published, as a door hands it over."""

from collections.abc import Mapping
from typing import NamedTuple

from goqueue.record.header import Priority


class NewMessage(NamedTuple):
    """A message that is to be published. A value of None is a tombstone, an empty key is no key."""

    value: bytes | None
    key: bytes | None = None
    headers: Mapping[str, str | bytes] | None = None
    partition: int | None = None
    priority: int = Priority.NORMAL
    deliver_at_ns: int | None = None
    expires_at_ns: int | None = None
    sequence: int | None = None
