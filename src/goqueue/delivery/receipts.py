"""Receipts: `topic:partition:offset:deliveryCount:nonce`, the right to settle one delivery of one message.

All messages of a delivery share the nonce: the group, the number of the delivery, and a seal over both that only the
broker can make. So the broker distinguishes a forged receipt from an expired one without remembering settled
deliveries, and a receipt never fits a later delivery.
"""

import hashlib
import re
from typing import NamedTuple

from goqueue.errors import ReceiptMalformed

TAG_BYTES = 6
_ID_BYTES = 8
_SEAL_BYTES = 8
_NONCE = re.compile(rf"[0-9a-f]{{{2 * (TAG_BYTES + _ID_BYTES + _SEAL_BYTES)}}}")
_NUMBER = re.compile(r"[0-9]{1,19}")


class Receipt(NamedTuple):
    """The parts of a receipt."""

    topic: str
    partition: int
    offset: int
    delivery_count: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}:{self.delivery_count}:{self.nonce}"

    @classmethod
    def parse(cls, text: str) -> "Receipt":
        """The parts of a receipt. Raises `ReceiptMalformed`."""
        parts = text.split(":")
        if len(parts) != 5 or not parts[0] or not _NONCE.fullmatch(parts[4]):
            raise ReceiptMalformed(text)
        if not all(_NUMBER.fullmatch(part) for part in parts[1:4]):
            raise ReceiptMalformed(text)
        return cls(parts[0], int(parts[1]), int(parts[2]), int(parts[3]), parts[4])


def group_tag(group: str) -> bytes:
    """A short hash of the group: a receipt tells in a few bytes which group it belongs to."""
    return hashlib.blake2b(group.encode(), digest_size=TAG_BYTES).digest()


def tag_of(nonce: str) -> bytes:
    """The tag of the group that issued it."""
    return bytes.fromhex(nonce[: 2 * TAG_BYTES])


def delivery_of(nonce: str) -> int:
    """The number of the delivery."""
    return int(nonce[2 * TAG_BYTES : 2 * (TAG_BYTES + _ID_BYTES)], 16)


def is_nonce(text: str) -> bool:
    """Whether the text looks like a nonce; only `make_nonce` knows whether it is one."""
    return _NONCE.fullmatch(text) is not None


def make_nonce(tag: bytes, delivery_id: int, salt: bytes) -> str:
    body = tag + delivery_id.to_bytes(_ID_BYTES)
    return (body + hashlib.blake2b(body, key=salt, digest_size=_SEAL_BYTES).digest()).hex()
