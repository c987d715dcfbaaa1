"""Receipts: which are good, and what is answered for those that are not."""

from itertools import product

import pytest

from goqueue.clock import SECOND
from goqueue.delivery.receipts import Receipt
from goqueue.errors import GoQueueError, NotLeader, ReceiptUnknown
from goqueue.wire import reports
from tests.broker.brokers import Node
from tests.broker.consumers import Consumer, outcomes, restarted
from tests.broker.transactional import Owner

UNKNOWN, EXPIRED, MALFORMED = "RECEIPT_HANDLE_UNKNOWN", "RECEIPT_HANDLE_EXPIRED", "RECEIPT_HANDLE_MALFORMED"


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# --- receipts ----------------------------------------------------------------------------------


def test_a_receipt_is_good_once(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b")
    member = Consumer(node)
    first, second = member.poll()

    results = member.ack([first, first, second])

    assert outcomes(results) == ["ack", UNKNOWN, "ack"]
    assert isinstance(results[1], ReceiptUnknown)
    assert results[1].facts()["reason"] == "settled"


def test_the_receipt_of_an_earlier_delivery_does_not_touch_a_later_one(node: Node) -> None:
    node.create(visibility_timeout="5s")
    node.publish(b"a")
    member = Consumer(node)
    (old,) = member.poll()
    node.pass_time(7)
    (new,) = member.poll()

    for action in ("ack", "nack", "reject", "extend", "release"):
        assert outcomes(member.settle(action, [old], delay=5)) == [EXPIRED]

    assert outcomes(member.ack([new])) == ["ack"]


def test_a_receipt_that_was_tampered_with_is_unknown(node: Node) -> None:
    node.create(partitions=2)
    node.publish(*numbered(4))
    node.publish(*numbered(4), partition=1)
    member, other = Consumer(node), Consumer(node, "others")
    first, second = member.poll(2)
    foreign = other.poll(1)[0]
    receipt = Receipt.parse(first.receipt)
    forged = receipt.nonce[:-1] + ("0" if receipt.nonce[-1] != "0" else "1")
    elsewhere = Receipt.parse(foreign.receipt).nonce

    for wrong in (
        receipt._replace(offset=3),
        receipt._replace(offset=1_000),
        receipt._replace(delivery_count=2),
        receipt._replace(delivery_count=0),
        receipt._replace(partition=1 - receipt.partition),
        receipt._replace(partition=7),
        receipt._replace(topic="nowhere"),
        receipt._replace(nonce=forged),
        receipt._replace(nonce=receipt.nonce[:12] + elsewhere[12:]),
        receipt._replace(nonce="0" * 44),
    ):
        for action in ("ack", "nack", "reject", "extend", "release"):
            assert outcomes(node.done(member.begin(action, [str(wrong)], delay=5))) == [UNKNOWN], (action, wrong)

    assert outcomes(member.ack([first, second])) == ["ack", "ack"]
    assert outcomes(other.ack([foreign])) == ["ack"]


@pytest.mark.parametrize(
    "text",
    ["", ":", "orders:0:0:1", "orders:0:0:1:xyz", "orders:x:0:1:" + "0" * 44, "orders:-1:0:1:" + "0" * 44,
     "orders:0:99999999999999999999:1:" + "0" * 44, "orders:0:0:1:" + "0" * 44 + ":", "orders:٣:0:1:" + "0" * 44],
)  # fmt: skip
def test_what_is_no_receipt_is_malformed(node: Node, text: str) -> None:
    node.create()
    member = Consumer(node)

    (result,) = node.done(member.begin("ack", [text]))

    assert not isinstance(result, reports.SettledMessage)
    assert result.code.startswith("RECEIPT_HANDLE")
    assert result.code != UNKNOWN


def test_receipts_stay_good_after_the_member_lost_the_partition(node: Node) -> None:
    node.create(partitions=2)
    node.publish(*numbered(2))
    node.publish(*numbered(2), partition=1)
    one = Consumer(node)
    messages = one.poll()
    Consumer(node)

    assert outcomes(one.ack(messages)) == ["ack"] * 4


FATES = ("ack", "nack", "release", "reject", "hold", "extend", "expire")


@pytest.mark.parametrize("fates", list(product(FATES, repeat=3)), ids="-".join)
def test_why_a_receipt_is_not_good_does_not_depend_on_the_others_of_its_delivery(
    node: Node, fates: tuple[str, ...]
) -> None:
    node.create(visibility_timeout="10s", backoff_initial="30s", max_deliveries=5)
    node.publish(*numbered(4))
    member = Consumer(node, session_timeout_ms=300_000)
    messages = member.poll(3)
    owner = Owner(node, "billing", timeout_ms=300_000)
    owner.begin()
    for fate, message in zip(fates, messages, strict=True):
        if fate == "hold":
            owner.ack([message])
        elif fate != "expire":
            member.settle(fate, [message], delay=60)
    if "release" in fates:
        assert UNKNOWN in outcomes(member.ack([messages[fates.index("release")]]))
    node.pass_time(11, step=1)

    (nonce,) = {Receipt.parse(message.receipt).nonce for message in messages}
    raw = _raw(*range(4))
    refused = node.done(node.broker.groups.settle_batch("orders", 0, nonce, raw, reports.Settlement("extend", SECOND)))
    why = {one.offset: (one.code, one.facts.get("reason")) for one in refused.refused}
    settled = {"ack", "nack", "release", "reject", "hold"}
    for fate, message in zip(fates, messages, strict=True):
        (result,) = member.settle("extend", [message], delay=60)
        if fate == "extend":
            assert message.offset not in why
            assert isinstance(result, reports.SettledMessage)
            continue
        expected = (UNKNOWN, "settled") if fate in settled else (EXPIRED, None)
        assert why[message.offset] == expected, fate
        assert isinstance(result, GoQueueError)
        assert (result.code, result.facts().get("reason")) == expected, fate
    forged = Receipt.parse(messages[0].receipt)._replace(offset=3)
    is_under_way = "extend" in fates
    assert outcomes(node.done(member.begin("ack", [str(forged)]))) == [UNKNOWN if is_under_way else EXPIRED]


@pytest.mark.parametrize("is_whole", [False, True])
def test_why_a_receipt_is_not_good_is_known_after_a_restart(node: Node, is_whole: bool) -> None:
    node.create(visibility_timeout="10s", backoff_initial="30s")
    node.publish(*numbered(4))
    member = Consumer(node, session_timeout_ms=300_000)
    late, long, done = member.poll(3)
    member.settle("extend", [long], delay=100)
    member.ack([done])
    node.pass_time(11, step=1)
    if is_whole:
        delivery = node.broker.partitions.delivery(node.leader())
        delivery.groups["workers"].stored.write_whole()

    member = member.moved_to(restarted(node))

    forged = str(Receipt.parse(late.receipt)._replace(offset=3))
    results = member.node.done(member.begin("ack", [late.receipt, done.receipt, forged, long.receipt]))
    assert outcomes(results) == [EXPIRED, UNKNOWN, UNKNOWN, "ack"]


def test_a_message_that_was_given_back_and_delivered_again_has_an_expired_receipt(node: Node) -> None:
    node.create()
    node.publish(b"a", b"b")
    member = Consumer(node)
    first, second = member.poll()
    member.settle("nack", [first], delay=0)
    node.pass_time(1)
    (again,) = member.poll()

    assert outcomes(member.ack([first])) == [EXPIRED]
    assert outcomes(member.ack([again, second])) == ["ack", "ack"]


# --- batches at once ---------------------------------------------------------------------------


def test_a_batch_is_settled_by_its_nonce(node: Node) -> None:
    node.create()
    node.publish(*numbered(6))
    member = Consumer(node)
    polled = member.polled()
    (batch,) = polled.polled.batches
    groups = node.broker.groups

    some = node.done(groups.settle_batch("orders", 0, batch.nonce, _raw(0, 2, 9), reports.Settlement("ack")))
    rest = node.done(groups.settle_batch("orders", 0, batch.nonce, b"", reports.Settlement("ack")))

    assert (some.settled, [(one.offset, one.code) for one in some.refused]) == (2, [(9, UNKNOWN)])
    assert (rest.settled, rest.refused, rest.committed_offset, rest.in_flight_count) == (4, [], 6, 0)


def _raw(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def test_a_late_ack_of_a_message_that_was_given_up_is_expired_and_not_settled(node: Node) -> None:
    node.create(visibility_timeout="10s", max_deliveries=1)
    node.publish(b"slow", b"quick")
    member = Consumer(node, session_timeout_ms=300_000)
    slow, quick = member.poll()
    member.ack([quick])
    node.pass_time(11, step=1)

    assert outcomes(member.ack([slow])) == ["RECEIPT_HANDLE_EXPIRED"]
    assert outcomes(member.ack([quick])) == ["RECEIPT_HANDLE_UNKNOWN"]


# --- leaders -----------------------------------------------------------------------------------


def test_a_receipt_of_a_partition_without_a_leader_may_be_tried_again(node: Node) -> None:
    node.create()
    node.publish(b"a")
    (message,) = Consumer(node).poll()
    groups, nonce = node.broker.groups, Receipt.parse(message.receipt).nonce
    node.broker.partitions.resign("orders", 0)

    (refused,) = groups.settle([message.receipt], reports.Settlement("ack")).result()

    assert isinstance(refused, NotLeader)
    assert refused.retryable
    with pytest.raises(NotLeader):
        groups.settle_batch("orders", 0, nonce, b"", reports.Settlement("ack"))
