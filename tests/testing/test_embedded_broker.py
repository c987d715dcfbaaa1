"""A whole server in the process of a test: started, used, stopped, gone."""

import json
import threading
import urllib.request
from pathlib import Path

import msgspec
import pytest

from goqueue.errors import DirectoryLocked
from goqueue.server.config import InvalidServerConfig
from goqueue.testing import EmbeddedBroker
from goqueue.wire import verbs
from goqueue.wire.verbs import Verb
from tests.server.served import Peer


def peer_of(broker: EmbeddedBroker) -> Peer:
    host, _, port = broker.address.rpartition(":")
    return Peer((host, int(port)))


def test_both_doors_serve_the_same_broker() -> None:
    with EmbeddedBroker() as broker:
        with peer_of(broker) as peer:
            peer.create_topic("orders")
        with urllib.request.urlopen(f"{broker.http_address}/topics") as answer:
            assert json.load(answer)["topics"] == ["orders"]


def test_its_data_are_temporary_unless_a_place_is_given(tmp_path: Path) -> None:
    with EmbeddedBroker(http=False) as broker:
        temporary = Path(broker.data)
        assert temporary.is_dir()
    assert not temporary.exists()

    for expected in ([b"1"], [b"1", b"2"]):
        with EmbeddedBroker(data=tmp_path, http=False) as broker, peer_of(broker) as peer:
            assert broker.data == str(tmp_path)
            if len(expected) == 1:
                peer.create_topic("orders")
            peer.send_batch("orders", [expected[-1]])
            peer.receive()
            assert peer.values("orders") == expected


def test_many_run_at_once() -> None:
    brokers = [EmbeddedBroker(http=False).start() for _ in range(5)]
    try:
        assert len({broker.address for broker in brokers}) == 5
        for broker in brokers:
            with peer_of(broker) as peer:
                assert peer.ask(Verb.PING, verbs.Empty())
    finally:
        for broker in brokers:
            broker.stop()


def test_it_can_be_started_and_stopped_by_hand_again_and_again() -> None:
    broker = EmbeddedBroker(http=False)

    for _ in range(3):
        assert broker.start() is broker
        with pytest.raises(RuntimeError, match="this broker is running"):
            broker.start()
        broker.stop()
        broker.stop()

    with pytest.raises(RuntimeError, match="this broker is not running"):
        _ = broker.address


def test_it_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())

    with EmbeddedBroker(http=False) as broker, peer_of(broker) as peer:
        peer.create_topic("orders")
        assert set(threading.enumerate()) > before

    assert set(threading.enumerate()) == before


def test_settings_are_those_of_the_server() -> None:
    settings = {"topics_partitions": 7, "topics_retention": "1h", "node_id": 4}
    with EmbeddedBroker(http=False, **settings) as broker, peer_of(broker) as peer:
        frame = peer.ask(Verb.CREATE_TOPIC, verbs.CreateTopicRequest("orders"))

    state = msgspec.msgpack.decode(frame.meta, type=verbs.TopicState)
    assert len(state.partitions) == 7
    assert state.settings["retention"] == "1h"
    assert state.partitions[0].leader == 4


def test_without_http_there_is_no_http_address() -> None:
    with EmbeddedBroker(http=False) as broker, pytest.raises(RuntimeError, match="http=False"):
        _ = broker.http_address


def test_what_keeps_it_from_starting_is_raised(tmp_path: Path) -> None:
    with pytest.raises(InvalidServerConfig, match="nonsense = 1 .*: there is no such setting"):
        EmbeddedBroker(nonsense=1).start()

    with EmbeddedBroker(data=tmp_path, http=False), pytest.raises(DirectoryLocked):
        EmbeddedBroker(data=tmp_path, http=False).start()
