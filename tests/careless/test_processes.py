"""Forks, worker processes and threads around one client: each message that was sent is stored once."""

import pytest

from goqueue import Client
from tests.careless.scripts import run

SCRIPTS = {
    "a child that was forked uses the client of its parent and is refused": """
        with Client(address) as gq, gq.producer(linger="1h") as p:
            for number in range(50):
                p.send(topic, b"%d" % number)
            child = os.fork()
            if not child:
                for use in (lambda: p.send(topic, b"child"), lambda: gq.publish(topic, b"child"), gq.topics):
                    try:
                        use()
                    except Conflict as error:
                        assert "fork" in str(error)
                    else:
                        os._exit(1)
                sys.exit(0)
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
            for number in range(50, 100):
                p.send(topic, b"%d" % number)
    """,
    "a child that was forked has a client of its own": """
        gq = Client(address)
        p = gq.producer(linger="1h")
        for number in range(50):
            p.send(topic, b"%d" % number)
        child = os.fork()
        if not child:
            own = Client(address).producer(linger="1h")
            for number in range(50, 100):
                own.send(topic, b"%d" % number)
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    """,
    "a pool of processes": """
        from concurrent.futures import ProcessPoolExecutor
        import multiprocessing
        client = None
        def work(number):
            global client, p
            if client is None:
                client = Client(address)
                p = client.producer(linger="1h")
            p.send(topic, b"%d" % number)
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
            list(pool.map(work, range(100)))
    """,
    "many threads share a client and a producer": """
        gq = Client(address)
        p = gq.producer()
        def work(first):
            for number in range(first, first + 20):
                if number % 2:
                    p.send(topic, b"%d" % number)
                else:
                    gq.publish(topic, b"%d" % number)
        threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 100, 20)]
        for thread in threads:
            thread.start()
    """,
    "two consumers in two threads, and nobody closes anything": """
        gq = Client(address)
        gq.publish_many(topic, [b"%d" % number for number in range(100)])
        seen = []
        def work():
            for message in gq.consume(topic, group=topic, mode="shared", idle="500ms"):
                with message:
                    seen.append(message.offset)
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seen) == list(range(100)), seen
    """,
    "a consumer is used by two threads at once": """
        gq = Client(address)
        gq.publish_many(topic, [b"%d" % number for number in range(100)])
        consumer = gq.consumer(topic, group=topic, start="latest")
        consumer.join()
        polling = threading.Thread(target=consumer.poll, kwargs={"timeout": "3s"})
        polling.start()
        while not consumer._connection.is_busy:
            threading.Event().wait(0.01)
        try:
            consumer.poll()
        except Conflict as error:
            assert "one thread at a time" in str(error)
        else:
            sys.exit(1)
    """,
}


@pytest.mark.parametrize("source", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_every_message_is_stored_once(source: str, address: str, topic: str, gq: Client) -> None:
    ended = run(source, address, topic)

    assert (ended.code, ended.err) == (0, "")
    assert sorted(int(message.value) for message in gq.read(topic)) == list(range(100))


def test_messages_that_nobody_settles_are_told_with_the_way_to_settle_them(address: str, topic: str) -> None:
    ended = run(
        """
        with Client(address) as gq:
            gq.publish_many(topic, [b"x"] * 10)
            for message in gq.consume(topic, group=topic, stop="empty"):
                pass
        """,
        address,
        topic,
    )

    assert ended.code == 0
    assert ended.err.count("GoQueueWarning") == 1
    assert "Do your work inside `with message:`" in ended.err


def test_a_script_that_ends_in_the_middle_of_a_loop_keeps_what_it_has_settled(
    address: str, topic: str, gq: Client
) -> None:
    ended = run(
        """
        gq = Client(address)
        gq.publish_many(topic, [b"x"] * 10)
        for message in gq.consume(topic, group=topic):
            with message:
                if message.offset == 6:
                    sys.exit(0)
        """,
        address,
        topic,
    )

    assert (ended.code, ended.err) == (0, "")
    assert gq.describe_group(topic).members == []
    assert [position.offset for position in gq.group_positions(topic, topic=topic)] == [6]
