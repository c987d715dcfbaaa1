"""A message that is to be published, as a door hands it over."""

from typing import NamedTuple

from goqueue.record.header import Priority
from goqueue.record.headers import Headers


class NewMessage(NamedTuple):
    """A message that is to be published. A value of None is a tombstone; a key of None is no key."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    partition: int | None = None
    priority: int = Priority.NORMAL
    deliver_at_ns: int | None = None
    expires_at_ns: int | None = None
    sequence: int | None = None
    created_at_ns: int | None = None
