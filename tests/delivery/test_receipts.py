"""Receipts: what they look like, and that nobody else can make one."""

import pytest

from goqueue.delivery.receipts import Receipt, delivery_of, group_tag, make_nonce, tag_of
from goqueue.errors import ReceiptMalformed

SALT = b"s" * 16


def test_a_receipt_can_be_taken_apart_again() -> None:
    nonce = make_nonce(group_tag("workers"), 2**63 + 5, SALT)
    receipt = Receipt("orders.eu", 3, 2**63 - 1, 12, nonce)

    parsed = Receipt.parse(str(receipt))

    assert parsed == receipt
    assert tag_of(parsed.nonce) == group_tag("workers")
    assert delivery_of(parsed.nonce) == 2**63 + 5


def test_the_nonce_depends_on_the_group_the_delivery_and_the_salt() -> None:
    nonces = {
        make_nonce(group_tag(group), number, salt)
        for group in ("a", "b")
        for number in (1, 2)
        for salt in (SALT, b"t" * 16)
    }

    assert len(nonces) == 8
    assert len({nonce[28:] for nonce in nonces}) == 8


@pytest.mark.parametrize(
    "text",
    ["", "::::", "a:0:0:1", "a:0:0:1:", "a:0:0:1:" + "0" * 43, "a:0:0:1:" + "0" * 45, "a:0:0:1:" + "G" * 44,
     "a:0:0:1:" + "A" * 44, ":0:0:1:" + "0" * 44, "a:-1:0:1:" + "0" * 44, "a:0:+1:1:" + "0" * 44,
     "a:0: 1:1:" + "0" * 44, "a:0:1:1:" + "0" * 44 + "\n", "a:0:1_0:1:" + "0" * 44, "a:0:²:1:" + "0" * 44,
     "a:0:" + "9" * 20 + ":1:" + "0" * 44],
)  # fmt: skip
def test_what_is_no_receipt_is_told(text: str) -> None:
    with pytest.raises(ReceiptMalformed):
        Receipt.parse(text)
