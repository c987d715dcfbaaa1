"""Messages that a group has delivered: messages like all others, which can be settled."""

import copy
import pickle

import pytest

from goqueue import Client, Conflict, Message
from tests.client.test_consumer import floor


def test_a_message_that_was_read_without_a_group_cannot_be_settled(one: Client) -> None:
    read = list(one.read("t"))
    with one.consumer("t", group="g") as consumer:
        batch = consumer.poll()
        for wrong in (read, read[0], [batch[0], read[1]], pickle.loads(pickle.dumps(batch[0]))):
            with pytest.raises(Conflict, match="read without a group"):
                consumer.ack(wrong)
        assert read[0].receipt is None
        assert floor(one) == 0


def test_a_delivered_message_is_a_message(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        batch = consumer.poll()
        read = list(one.read("t"))

        assert batch == read
        assert {hash(message) for message in batch} == {hash(message) for message in read}
        assert set(batch) == set(read)
        assert all(isinstance(message, Message) for message in batch)
        assert repr(batch[0]) == "<Delivered t/0 @ 0, value=b'0'>"
        with pytest.raises(AttributeError):
            batch[0].value = b"other"  # type: ignore[misc]


def test_a_copy_of_a_delivered_message_can_be_settled_and_a_pickle_is_a_plain_message(one: Client) -> None:
    with one.consumer("t", group="g") as consumer:
        batch = consumer.poll()
        copied, deep = copy.copy(batch[0]), copy.deepcopy(batch)

        pickled = pickle.loads(pickle.dumps(batch))
        assert pickled == batch
        assert {type(message) for message in pickled} == {Message}
        assert (pickled[0].receipt, pickled[0].delivery_count) == (None, 0)
        copied.ack()
        consumer.ack(deep[1:])
        assert floor(one) == 10
