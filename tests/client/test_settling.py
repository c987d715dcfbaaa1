"""Settlements as an application asks for them."""

import asyncio

import pytest

from goqueue.client.consumer_core import EXTENDED_NS_MAX
from goqueue.client.settling import REASON_CHARACTERS_MAX, extension_of, nack_of, reject_of, settlement_of
from goqueue.clock import SECOND
from goqueue.errors import InvalidRequest


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (None, "ack"),
        (ValueError("bad"), "nack"),
        (KeyboardInterrupt(), "release"),
        (SystemExit(), "release"),
        (asyncio.CancelledError(), "release"),
    ],
)
def test_what_leaves_the_block_of_a_message_decides(error: BaseException | None, action: str) -> None:
    assert settlement_of(error).action == action


def test_a_nack_may_wait_and_says_why() -> None:
    settlement = nack_of("3s", "later")

    assert (settlement.action, settlement.delay_ns, settlement.reason) == ("nack", 3 * SECOND, "later")
    assert nack_of(None, "").delay_ns is None


def test_a_reason_is_cut_to_what_fits_a_ledger() -> None:
    assert len(reject_of("r" * 5_000).reason) == REASON_CHARACTERS_MAX


def test_an_extension_has_a_length_within_bounds() -> None:
    assert extension_of("1m").delay_ns == 60 * SECOND
    for wrong in (0, "-1s", EXTENDED_NS_MAX // SECOND + 1):
        with pytest.raises(InvalidRequest):
            extension_of(wrong)
