"""Facts are read back as they were written, and refused if they are anything else."""

import pytest
from pyroaring import BitMap64

from goqueue.errors import UnsupportedFormat
from goqueue.transactions import facts
from goqueue.transactions.decisions import DecidedAcks, DecidedPartition, DecidedPosition, DecisionPart

PART = DecisionPart(
    "writer",
    7,
    1_700,
    1,
    [DecidedPartition("orders", "id", 0, 12)],
    [DecidedPosition("billing", "orders", "id", 0, 5, "note")],
    [DecidedAcks("billing", "orders", "id", 0, BitMap64([1, 2, 9]))],
)


def test_a_decision_is_read_back_with_its_sets_of_acks() -> None:
    saved = facts.SavedDecision(facts.VERSION, 5, "marker", [PART])

    assert facts.decode(facts.SavedDecision, b"d:writer:1700", facts.encode(saved)) == saved


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x90", facts.encode(facts.SavedProducer(1, 0, 0))[:-1]])
def test_bytes_that_are_no_fact_are_refused_with_their_key(raw: bytes) -> None:
    with pytest.raises(UnsupportedFormat, match="p:101"):
        facts.decode(facts.SavedProducer, b"p:101", raw)


def test_a_later_version_is_refused_by_its_number() -> None:
    raw = facts.encode(facts.SavedProducer(9, 0, 0))

    with pytest.raises(UnsupportedFormat, match="has version 9; this GoQueue knows 1"):
        facts.decode(facts.SavedProducer, b"p:101", raw)
