"""The message as an application gets it: decoded from records, and part of a trace."""

import pickle

import pytest

from goqueue.client.received import Message, decode_received
from goqueue.errors import CorruptRecord
from goqueue.names import TopicPartition
from goqueue.record import compression
from goqueue.record.header import FLAGS_KNOWN, Flags
from goqueue.record.message import Undecodable
from goqueue.tracing.context import TraceContext
from tests.record.batches import stamped

ORDERS = TopicPartition("orders", 3)
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_message_belongs_to_the_trace_of_its_publisher() -> None:
    headers = [{"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}]

    (message,) = decode_received(stamped([b"v"], headers=headers), ORDERS, flags=FLAGS_KNOWN)

    assert message.trace == TraceContext(TRACE_ID, SPAN_ID, True)


def test_a_message_without_one_has_a_trace_of_its_own_which_is_always_the_same() -> None:
    records = stamped([b"a", b"b"])

    first, second = decode_received(records, ORDERS, flags=FLAGS_KNOWN)
    again, _ = decode_received(records, ORDERS, flags=FLAGS_KNOWN)

    assert first.trace == again.trace
    assert first.trace.trace_id != second.trace.trace_id


def test_a_pickle_is_the_same_message_in_the_same_trace() -> None:
    (message,) = decode_received(stamped([b"v"], keys=[b"k"]), ORDERS, flags=FLAGS_KNOWN)

    pickled = pickle.loads(pickle.dumps(message))

    assert (type(pickled), pickled, pickled.trace) == (Message, message, message.trace)


def test_a_value_that_cannot_be_decompressed_hides_no_other_message() -> None:
    values = [b"plain", compression.compress(b"packed" * 100, "zstd"), b"no frame"]
    records = stamped(values, flags=[0, Flags.COMPRESSED, Flags.COMPRESSED])
    undecodable: list[Undecodable] = []

    decoded = decode_received(records, ORDERS, flags=Flags.COMPRESSED, undecodable=undecodable)

    assert [message.value for message in decoded] == [b"plain", b"packed" * 100]
    assert [one.offset for one in undecodable] == [decoded[-1].offset + 1]
    with pytest.raises(CorruptRecord):
        decode_received(records, ORDERS, flags=Flags.COMPRESSED)
