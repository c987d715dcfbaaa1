"""Staging: stored and hidden by one, committed or aborted by another, and never by halves."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue import (
    AsyncClient,
    AvailabilityError,
    Client,
    InvalidMessage,
    InvalidPartition,
    InvalidRequest,
    InvalidTransactionState,
    MessageTooLarge,
    PartitionNotFound,
    ProducerFenced,
    SchemaRejected,
    TopicNotFound,
    TransactionAborted,
)
from goqueue.client.accumulator import (
    BULK_BYTES,
    REQUEST_RECORDS_MAX,
    BulkBatch,
    MessageColumns,
    OutgoingRequest,
    PartitionQueue,
    TopicQueues,
)
from goqueue.client.staging import Staging
from goqueue.record import kernel
from goqueue.record.header import HEADER_BYTES
from goqueue.record.headers import decode_headers
from goqueue.record.identity import identity_of
from goqueue.testing import EmbeddedBroker
from goqueue.wire.partitioning import partition_of_key
from goqueue.wire.transaction_reports import TransactionOutcome, TransactionOwner
from goqueue.wire.verbs import Verb
from tests.client.faulty_network import Proxy

TIMEOUT_S = 30
YEAR_2100_NS = 4_102_444_800 * 10**9


def values(gq: Client, topic: str = "t", isolation: str = "read_committed") -> list[bytes]:
    return sorted(message.value for message in gq.read(topic, isolation=isolation))


def until(fact: Callable[[], object]) -> None:
    patience = threading.Event()
    for _ in range(TIMEOUT_S * 200):
        if fact():
            return
        patience.wait(0.005)
    raise AssertionError("it never was so")


def staged(gq: Client, transactional_id: str, *messages: bytes, marker: str | None = None) -> TransactionOwner:
    with gq.stage(transactional_id, marker=marker) as staging:
        staging.add("t", messages)
        return staging.prepare()


@pytest.fixture
def m(request: pytest.FixtureRequest) -> str:
    """A marker that no other test has: the broker remembers them."""
    return str(request.node.name)


@pytest.fixture
def t(gq: Client) -> str:
    """A topic with three partitions."""
    gq.create_topic("t", partitions=3)
    return "t"


# --- together -----------------------------------------------------------------------------------


def test_what_is_staged_is_seen_when_somebody_else_commits_it(gq: Client, t: str, address: str) -> None:
    with Client(address) as stager:
        owner = staged(stager, "job/0", b"a", b"b")
    assert owner.record_count == 2
    until(lambda: values(gq, isolation="read_uncommitted") == [b"a", b"b"])
    assert values(gq) == []

    assert gq.commit_staged([owner]) == TransactionOutcome("committed")

    assert values(gq) == [b"a", b"b"]
    assert gq.transactions() == []


def test_many_are_committed_in_one_step(gq: Client, t: str, m: str) -> None:
    owners = [staged(gq, f"job/{number}", b"%d" % number) for number in range(5)]
    assert len(gq.transactions()) == 5

    gq.commit_staged(owners, marker=m)

    assert values(gq) == [b"0", b"1", b"2", b"3", b"4"]
    assert gq.transactions() == []


def test_none_is_committed_if_one_of_them_cannot_be(gq: Client, t: str, m: str) -> None:
    owners = [staged(gq, f"job/{number}", b"%d" % number) for number in range(3)]
    gq.abort_staged([owners[1]])

    with pytest.raises(InvalidTransactionState):
        gq.commit_staged(owners, marker=m)

    assert values(gq) == []
    gq.commit_staged([owners[0], owners[2]], marker=m)
    assert values(gq) == [b"0", b"2"]


def test_a_commit_without_owners_is_refused(gq: Client) -> None:
    with pytest.raises(InvalidRequest, match="owners is empty"):
        gq.commit_staged([])


def test_what_is_aborted_is_never_seen_and_aborting_again_changes_nothing(gq: Client, t: str) -> None:
    owner = staged(gq, "job/0", b"gone")
    gq.abort_staged([owner, owner])
    gq.abort_staged([owner])
    assert values(gq) == []
    assert gq.transactions() == []

    kept = staged(gq, "job/0", b"kept")
    gq.abort_staged([owner])  # it is not about the next one
    gq.commit_staged([kept])
    gq.abort_staged([kept])
    assert values(gq) == [b"kept"]


def test_nothing_added_can_be_prepared_and_committed_as_well(gq: Client, t: str, m: str) -> None:
    empty, full = staged(gq, "job/0"), staged(gq, "job/1", b"a")
    assert empty.record_count == 0
    gq.commit_staged([empty, full], marker=m)
    assert values(gq) == [b"a"]


# --- once ---------------------------------------------------------------------------------------


def test_a_marker_that_was_committed_is_told_before_anything_is_staged(gq: Client, t: str, m: str) -> None:
    gq.commit_staged([staged(gq, "job/0", b"a", marker=m)], marker=m)

    with gq.stage("job/0", marker=m) as staging:
        assert staging.already_committed
        with pytest.raises(InvalidTransactionState):
            staging.add("t", [b"a"])
        with pytest.raises(InvalidTransactionState):
            staging.prepare()
    assert values(gq) == [b"a"]
    assert gq.transactions() == []


def test_what_was_staged_twice_under_one_marker_is_seen_once(gq: Client, t: str, m: str) -> None:
    first = staged(gq, "job/old", b"a", marker=m)
    second = staged(gq, "job/new", b"a", marker=m)

    assert not gq.commit_staged([first], marker=m).already
    assert gq.commit_staged([second], marker=m).already

    assert values(gq) == [b"a"]
    assert gq.transactions() == []


def test_a_commit_is_repeated_when_its_answer_is_lost(address: str, gq: Client, t: str, m: str) -> None:
    owners = [staged(gq, "job/0", b"a"), staged(gq, "job/1", b"b")]
    with Proxy(address) as proxy, Client(proxy.address, timeout="20s") as driver:
        proxy.lose_answers(Verb.CALL, 2)
        assert driver.commit_staged(owners, marker=m) == TransactionOutcome("committed", already=True)
        assert proxy.lost == 2
    assert values(gq) == [b"a", b"b"]


def test_messages_are_sent_again_when_connections_break(address: str, gq: Client, t: str) -> None:
    with Proxy(address) as proxy, Client(proxy.address, timeout="20s") as stager:
        proxy.lose_answers(Verb.PUBLISH, 3)
        with stager.stage("job/0") as staging:
            for number in range(20):
                staging.add("t", [b"%03d" % (number * 10 + digit) for digit in range(10)], keys=[b"k"] * 10)
            owner = staging.prepare()
        assert proxy.lost == 3
    gq.commit_staged([owner])
    assert [message.value for message in gq.read("t", partition=partition_of_key(b"k", 3))] == [
        b"%03d" % number for number in range(200)
    ]


def test_staging_begins_again_when_the_answer_to_the_begin_is_lost(address: str, gq: Client, t: str, m: str) -> None:
    async def main(proxy: Proxy) -> TransactionOwner:
        async with asyncio.timeout(TIMEOUT_S), AsyncClient(proxy.address) as client:
            staging = client.stage("job/0", marker=m)
            await staging._producer._init(900_000)  # so that the begin is what is asked next
            proxy.lose_answers(Verb.CALL, 1)
            async with staging:
                await staging.add("t", [b"a"])
                return await staging.prepare()

    with Proxy(address) as proxy:
        owner = asyncio.run(main(proxy))
        assert proxy.lost == 1
    assert [one.transactional_id for one in gq.transactions()] == ["job/0"]
    gq.commit_staged([owner], marker=m)
    assert values(gq) == [b"a"]


# --- fenced -------------------------------------------------------------------------------------


def test_the_second_attempt_fences_the_first(gq: Client, t: str, address: str) -> None:
    with Client(address) as other, gq.stage("job/0") as first:
        first.add("t", [b"first"])
        second = staged(other, "job/0", b"second")
        with pytest.raises(ProducerFenced):
            gq.commit_staged([first.prepare()])
        gq.commit_staged([second])
    assert values(gq) == [b"second"]


def test_a_commit_that_names_an_attempt_that_was_fenced_commits_nobody(gq: Client, t: str, m: str) -> None:
    zombie, sibling = staged(gq, "job/0", b"zombie"), staged(gq, "job/1", b"sibling")
    again = staged(gq, "job/0", b"again")

    with pytest.raises(ProducerFenced):
        gq.commit_staged([sibling, zombie], marker=m)
    assert values(gq) == []

    gq.commit_staged([sibling, again], marker=m)
    assert values(gq) == [b"again", b"sibling"]


def test_adding_fails_soon_after_the_attempt_was_fenced(gq: Client, t: str, address: str) -> None:
    with Client(address) as other, gq.stage("job/0") as first:
        first.add("t", [b"first"])
        with other.stage("job/0"):

            def is_told() -> bool:
                try:
                    first.add("t", [b"more"])
                except ProducerFenced:
                    return True
                return False

            until(is_told)


# --- ends ---------------------------------------------------------------------------------------


def test_leaving_the_block_without_preparing_aborts(gq: Client, t: str) -> None:
    with gq.stage("job/0") as staging:
        staging.add("t", [b"gone"])
    with pytest.raises(InvalidTransactionState):
        staging.add("t", [b"late"])
    with suppress(ZeroDivisionError), gq.stage("job/1") as staging:
        staging.add("t", [b"gone"])
        raise ZeroDivisionError
    assert gq.transactions() == []
    assert values(gq) == []


def test_a_client_that_closes_aborts_what_was_not_prepared_and_leaves_what_was(
    gq: Client, t: str, address: str
) -> None:
    stager = Client(address)
    prepared = staged(stager, "job/0", b"kept")
    open_one = stager.stage("job/1").__enter__()
    open_one.add("t", [b"gone"])
    stager.close()

    assert [one.transactional_id for one in gq.transactions()] == ["job/0"]
    gq.commit_staged([prepared])
    assert values(gq) == [b"kept"]


def test_what_is_prepared_ends_with_its_timeout(gq: Client, t: str, m: str) -> None:
    with gq.stage("job/0", timeout="50ms") as staging:
        staging.add("t", [b"late"])
        owner = staging.prepare()
    until(lambda: gq.transactions() == [])

    with pytest.raises(TransactionAborted) as refused:
        gq.commit_staged([owner], marker=m)
    assert refused.value.reason == "timeout"
    assert values(gq) == []


def test_a_broker_that_was_restarted_commits_nothing_that_was_staged_before(tmp_path: Path, m: str) -> None:
    broker = EmbeddedBroker(data=tmp_path, http=False)
    with broker, Client(broker.address) as gq:
        gq.create_topic("t", partitions=1)
        committed = staged(gq, "job/0", b"kept")
        gq.commit_staged([committed], marker=m)
        owner = staged(gq, "job/1", b"gone")
    with broker, Client(broker.address) as gq:
        with pytest.raises(TransactionAborted):
            gq.commit_staged([owner], marker="n")
        assert gq.commit_staged([committed], marker=m).already
        assert values(gq) == [b"kept"]


def test_a_broker_that_is_gone_is_told_of(address: str, gq: Client, t: str, m: str) -> None:
    with Proxy(address) as proxy, Client(proxy.address, timeout="1500ms") as stager:
        owner = staged(stager, "job/0", b"a")
        proxy.mute()
        with pytest.raises(AvailabilityError):
            stager.commit_staged([owner], marker=m)
        proxy.mute(False)
        proxy.cut()
    assert gq.commit_staged([owner], marker=m).status == "committed"
    assert values(gq) == [b"a"]


# --- what is added ------------------------------------------------------------------------------


def committed(gq: Client, add: Callable[[Staging], None]) -> None:
    with gq.stage("job/0") as staging:
        add(staging)
        owner = staging.prepare()
    gq.commit_staged([owner])


def test_keys_go_where_a_producer_sends_them(gq: Client, t: str) -> None:
    keys = [b"k%d" % (number % 17) if number % 5 else None for number in range(500)]
    published = {key: gq.publish("t", b"", key=key).partition for key in set(keys) if key}
    start = gq.offsets("t")

    committed(gq, lambda staging: staging.add("t", [b"%d" % number for number in range(500)], keys=keys))

    last: dict[tuple[bytes | None, int], int] = {}
    count = 0
    for partition in range(3):
        for message in gq.read("t", partition=partition, offset=start[partition]):
            number = int(message.value)
            assert message.key == keys[number]
            assert message.key is None or published[message.key] == partition
            assert last.get((message.key, partition), -1) < number
            last[message.key, partition] = number
            count += 1
    assert count == 500


def test_messages_without_a_key_take_turns(gq: Client, t: str) -> None:
    def add(staging: Staging) -> None:
        for _ in range(6):
            staging.add("t", [b"x"] * 10)

    committed(gq, add)
    assert Counter(message.partition for message in gq.read("t")) == {0: 20, 1: 20, 2: 20}


def test_all_that_a_message_has_arrives(gq: Client, t: str) -> None:
    def add(staging: Staging) -> None:
        staging.add(
            "t",
            [b"a", None, b"", b"late", b"past"],
            keys=[b"k", b"", None, b"", None],
            headers=[{"x": "1"}, None, {"y": b"\xff", "gq-origin": "o"}, {"z": "3"}, {"null": None}],
            priorities=[0, 1, 2, 3, 4],
            deliver_at_ns=[None, None, None, YEAR_2100_NS, 5],
            created_at_ns=[None, 10**9, None, None, -(10**9)],
            partitions=[0, 0, 0, 1, 0],
        )

    committed(gq, add)
    found = list(gq.read("t", partition=0))
    assert [message.value for message in found] == [b"a", b"", b"", b"past"]
    assert [message.key for message in found] == [b"k", b"", None, None]
    moments = [message.created_at and message.created_at.timestamp() for message in found]
    assert moments == [None, 1.0, None, -1.0]
    assert [int(message.priority) for message in found] == [0, 1, 2, 4]
    assert [message.raw_headers for message in found] == [
        [("x", b"1")],
        [],
        [("y", b"\xff"), ("gq-origin", b"o")],
        [("null", None)],
    ]
    (delayed,) = gq.delayed("t")
    assert (delayed.partition, delayed.deliver_at_ns) == (1, YEAR_2100_NS)


def test_large_and_small_messages_are_cut_into_requests_that_a_broker_takes(gq: Client, t: str) -> None:
    sizes = [1, 900_000, 3, 0, 2_000_000, 600_000, 7] * 3

    committed(gq, lambda staging: staging.add("t", [b"x" * size for size in sizes], partitions=[1] * len(sizes)))
    assert [len(message.value) for message in gq.read("t", partition=1)] == sizes


def test_values_are_compressed_if_asked_for(gq: Client, t: str) -> None:
    with gq.stage("job/0", compression="zstd") as staging:
        staging.add("t", [b"x" * 10_000], partitions=[0])
        owner = staging.prepare()
    gq.commit_staged([owner])
    assert values(gq) == [b"x" * 10_000]
    assert gq.describe_topic("t").partitions[0].size_bytes < 1_000


@pytest.mark.parametrize(
    ("columns", "error", "match"),
    [
        ({"values": [b"a", None]}, InvalidMessage, "message 1: a tombstone needs the key"),
        ({"values": [None], "keys": [None]}, InvalidMessage, "tombstone"),
        ({"values": [b"a", b"b"], "keys": [b"x", b"k" * 70_000]}, MessageTooLarge, "message 1: key of 70000"),
        ({"values": [b"a", b"b" * 2**25]}, MessageTooLarge, "message 1: value of 33554432"),
        ({"values": [b"a"], "headers": [{"gq-producer": "1"}]}, InvalidMessage, "gq-producer"),
        ({"values": [b"a"], "headers": [{"x": 7}]}, InvalidMessage, "header value must be str, bytes or None, got int"),
        ({"values": [b"a"], "priorities": [5]}, InvalidMessage, "invalid priority 5"),
        ({"values": [b"a"], "priorities": 9}, InvalidMessage, "invalid priority 9"),
        ({"values": [b"a"], "partitions": [3]}, PartitionNotFound, "t-3"),
        ({"values": [b"a"], "partitions": [-1]}, InvalidPartition, "-1"),
        ({"values": [b"a"], "deliver_at_ns": [2**63]}, InvalidMessage, "2262"),
        (
            {"values": [b"a"], "created_at_ns": [-(2**63) - 1]},
            InvalidMessage,
            "invalid created_at: before the year 1677",
        ),
        ({"values": [b"a"], "keys": []}, InvalidRequest, "0 keys for 1 values"),
        ({"values": [b"a"], "partitions": [0, 1]}, InvalidRequest, "2 partitions for 1 values"),
        ({"values": [], "headers": [None]}, InvalidRequest, "1 headers for 0 values"),
        ({"topic": "nope", "values": [b"a"]}, TopicNotFound, "nope"),
    ],
)
def test_what_is_wrong_is_told_at_once_and_nothing_of_it_is_added(
    gq: Client, t: str, columns: dict[str, object], error: type[Exception], match: str
) -> None:
    with gq.stage("job/0") as staging:
        with pytest.raises(error, match=match):
            staging.add(**{"topic": "t", **columns})  # type: ignore[arg-type]
        staging.add("t", [b"good"])
        owner = staging.prepare()
    assert owner.record_count == 1
    gq.commit_staged([owner])
    assert values(gq) == [b"good"]


def test_a_message_that_breaks_its_schema_takes_the_whole_transaction_with_it(gq: Client) -> None:
    gq.create_topic("checked", partitions=2, schema_validation="required")
    gq.register_schema("checked-value", {"type": "object"})
    with gq.stage("job/0") as staging:
        staging.add("checked", [b"{}", b"5", b"{}"], partitions=[0, 0, 1])
        with pytest.raises(SchemaRejected):
            staging.prepare()
    until(lambda: gq.transactions() == [])
    assert values(gq, "checked") == []


def test_a_rate_is_kept(gq: Client, t: str) -> None:
    with gq.stage("job/0", rate=400) as staging:
        start_s = monotonic()
        for _ in range(4):
            staging.add("t", [b"x"] * 50)
        took_s = monotonic() - start_s
        assert staging.prepare().record_count == 200
    assert 0.35 <= took_s < 5


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_that_is_none_is_refused(gq: Client, rate: float) -> None:
    with pytest.raises(InvalidRequest, match="rate"):
        gq.stage("job/0", rate=rate)


def test_it_is_the_same_in_an_event_loop(gq: Client, t: str, address: str, m: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), AsyncClient(address) as client:
            async with client.stage("job/0", marker=m) as staging:
                assert not staging.already_committed
                await staging.add("t", [b"a", b"b"])
                owner = await staging.prepare()
                with pytest.raises(InvalidTransactionState):
                    await staging.add("t", [b"late"])
            with pytest.raises(InvalidTransactionState):
                await staging.__aenter__()
            await client.commit_staged([owner], marker=m)

    asyncio.run(main())
    assert values(gq) == [b"a", b"b"]


# --- how messages are spread --------------------------------------------------------------------

KEYS = st.lists(st.one_of(st.none(), st.binary(max_size=3)), max_size=40)


@given(keys=KEYS, asked=st.lists(st.one_of(st.none(), st.integers(0, 4)), min_size=40, max_size=40), data=st.data())
def test_each_message_goes_to_one_partition_in_order(
    keys: list[bytes | None], asked: list[int | None], data: st.DataObject
) -> None:
    queues = TopicQueues("t", 5, compression="none", acks="none", value_bytes_max=100)
    columns = MessageColumns(
        [b"%d" % number for number in range(len(keys))],
        data.draw(st.sampled_from([keys, None])),
        [{"n": str(number)} for number in range(len(keys))],
        [number % 5 for number in range(len(keys))],
    )
    partitions = data.draw(st.sampled_from([asked[: len(keys)], None]))

    spread = [(queue and queue.partition, part) for queue, part in queues.spread(columns, partitions)]

    seen: list[int] = []
    for partition, part in spread:
        numbers = [int(value or b"") for value in part.values]
        assert numbers == sorted(numbers)
        assert list(part.headers or ()) == [{"n": str(number)} for number in numbers]
        seen += numbers
        for place, number in enumerate(numbers):
            key = columns.keys[number] if columns.keys else None
            expected = None if key is None else partition_of_key(key, 5)
            if partitions is not None and partitions[number] is not None:
                expected = partitions[number]
            assert partition == expected
            assert part.keys is None or part.keys[place] == key
            assert not isinstance(part.priorities, int)
            assert part.priorities[place] == number % 5
    assert sorted(seen) == list(range(len(keys)))
    assert len({partition for partition, _ in spread}) == len(spread)


@given(sizes=st.lists(st.integers(0, 300), max_size=60), size_max=st.integers(1, 1_000))
def test_pieces_are_whole_in_order_and_not_too_large(sizes: list[int], size_max: int) -> None:
    columns = MessageColumns([b"x" * size for size in sizes], [b"k"] * len(sizes))

    pieces = list(columns.cut(size_max))

    assert [value for piece, _ in pieces for value in piece.values] == columns.values
    for piece, size in pieces:
        assert size == sum(HEADER_BYTES + 1 + len(value or b"") for value in piece.values)
        assert size <= size_max or len(piece.values) == 1
    for (one, size), (two, _) in pairwise(pieces):
        assert size + two.sizes[0] > size_max, f"{one} could hold more"


ANY_COLUMNS = st.builds(
    lambda rows, has_keys, has_headers, priorities: MessageColumns(
        [value for value, _, _ in rows],
        [key for _, key, _ in rows] if has_keys else None,
        [{"h": text} if text else None for _, _, text in rows] if has_headers else None,
        [number % 5 for number in range(len(rows))] if priorities < 0 else priorities,
    ),
    st.lists(st.tuples(st.binary(max_size=5), st.one_of(st.none(), st.binary(max_size=2)), st.text("ab")), min_size=1),
    st.booleans(),
    st.booleans(),
    st.integers(-1, 4),
)


@given(added=st.lists(ANY_COLUMNS, min_size=1, max_size=4))
def test_a_request_holds_what_was_added_one_behind_the_other(added: list[MessageColumns]) -> None:
    queue = PartitionQueue("t", 0)
    request = OutgoingRequest([BulkBatch(queue, 0, columns, sum(columns.sizes)) for columns in added], 1)

    records = request.encode((5, 6), "none", 7)

    assert request.encode((5, 6), "none", 7) == records, "it is not the same when it is sent again"
    assert identity_of(records) == (5, 6, 1, request.record_count, 7)
    decoded = kernel.decode(records, None, kernel.RecordBase, verify=False)
    count = 0
    for columns in added:
        for index, value in enumerate(columns.values):
            record = decoded[count]
            assert record.value == value
            assert record.key == (columns.keys[index] if columns.keys else None)
            asked = columns.priorities if isinstance(columns.priorities, int) else columns.priorities[index]
            assert record.priority_code == asked
            headers = decode_headers(record.encoded_headers)
            headers.pop("gq-producer", None)
            assert headers == ((columns.headers[index] if columns.headers else None) or {})
            count += 1
    assert count == len(decoded) == request.record_count


def test_a_piece_has_no_more_records_than_a_request_may_have() -> None:
    pieces = list(MessageColumns([b""] * (REQUEST_RECORDS_MAX + 1)).cut(2**40))
    assert [len(piece.values) for piece, _ in pieces] == [REQUEST_RECORDS_MAX, 1]
    assert BULK_BYTES < 2**21


# --- how long it lives --------------------------------------------------------------------------


def test_a_staging_lives_as_long_as_its_block_and_then_for_its_timeout(gq: Client, t: str) -> None:
    with gq.stage("job/0", timeout="100ms") as staging:
        staging.add("t", [b"a"])
        (begun,) = gq.transactions()
        until(lambda: gq.transactions()[0].updated_at_ns - begun.started_at_ns > 500_000_000)
        owner = staging.prepare()
    until(lambda: gq.transactions() == [])
    with pytest.raises(TransactionAborted, match="timeout"):
        gq.commit_staged([owner])


def test_a_run_is_kept_by_one_that_stages_nothing(gq: Client, t: str) -> None:
    with gq.stage("job/0", timeout="100ms", job="job", run="1") as staging:
        staging.add("t", [b"a"])
        owner = staging.prepare()
    (begun,) = gq.transactions()
    with gq.keep_staged("job", run="1", timeout="100ms"):
        until(lambda: gq.transactions()[0].updated_at_ns - begun.started_at_ns > 500_000_000)
    gq.commit_staged([owner])
    assert values(gq) == [b"a"]


def test_a_job_is_aborted_without_its_owners(gq: Client, t: str) -> None:
    for number in range(3):
        with gq.stage(f"job/{number}", job="job", run="1") as staging:
            staging.add("t", [b"a"])
            staging.prepare()
    assert gq.abort_staged_job("another") == 0
    assert gq.abort_staged_job("job") == 3
    assert gq.transactions() == []
    with pytest.raises(TransactionAborted), gq.stage("job/9", job="job", run="1"):
        pass


def test_a_new_run_aborts_the_earlier_one(address: str) -> None:
    async def run() -> None:
        async with AsyncClient(address) as gq:
            await gq.create_topic("runs")
            for number in range(3):
                async with gq.stage(f"runs/{number}", job="runs", run="1") as staging:
                    await staging.add("runs", [b"a"])
                    await staging.prepare()
            async with gq.stage("runs/0", job="runs", run="2") as staging:
                await staging.add("runs", [b"b"])
                assert [one.transactional_id for one in await gq.transactions()] == ["runs/0"]
                await gq.commit_staged([await staging.prepare()])
            assert [message.value async for message in gq.read("runs")] == [b"b"]
            await gq.delete_topic("runs")

    asyncio.run(run())
