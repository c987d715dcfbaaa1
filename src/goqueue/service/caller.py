"""The client that sent a request, as a door knows it."""

from typing import Final, NamedTuple


class Caller(NamedTuple):
    """Whose request it is. Every verb that comes through a door has one."""

    door: str  # native, http
    address: str = ""  # host:port of the peer
    client_id: str = ""  # as the client calls itself
    principal: str = "anonymous"

    def __str__(self) -> str:
        named = self.client_id or self.principal
        return f"{named}@{self.address}" if self.address else named


LOCAL: Final = Caller("local")
"""A caller in the process of the broker itself."""
