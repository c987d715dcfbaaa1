"""Contexts of OpenTelemetry: into what is published, and out of what is consumed."""

import asyncio
import contextvars
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.context import get_current
from opentelemetry.sdk.trace import ReadableSpan, Tracer, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, use_span

from goqueue import AsyncClient, Client, Message
from goqueue.client import telemetry
from goqueue.names import TopicPartition
from goqueue.record.headers import encode_headers
from goqueue.tracing.context import derived_trace_id
from tests.client.test_consumer import eventually

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"


class Spans:
    """A tracer, and the spans that it has made and ended, by name."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer: Tracer = provider.get_tracer("tests")  # type: ignore[assignment]

    def __getitem__(self, name: str) -> ReadableSpan:
        (span,) = (span for span in self._exporter.get_finished_spans() if span.name == name)
        return span

    @contextmanager
    def active(self, name: str) -> Iterator[trace.Span]:
        with self.tracer.start_as_current_span(name) as span:
            yield span


@pytest.fixture
def spans() -> Iterator[Spans]:
    before = get_current()
    yield Spans()
    assert get_current() is before, "a test has left its context behind"


@pytest.fixture
def orders(gq: Client) -> Client:
    gq.create_topic("orders", partitions=1)
    return gq


def traceparent(span: trace.Span) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def remote(*, sampled: bool = True, state: dict[str, str] | None = None) -> NonRecordingSpan:
    """The span of somebody else, as it comes in with a request."""
    entries = None if state is None else TraceState(list(state.items()))
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    return NonRecordingSpan(SpanContext(int(TRACE_ID, 16), int(SPAN_ID, 16), True, flags, entries))


def headers(client: Client, topic: str = "orders") -> list[dict[str, str]]:
    return [message.headers for message in client.read(topic)]


def fail(is_expected: bool) -> None:
    assert is_expected
    raise ValueError("bad")


def consume_one(client: Client) -> Message:
    (message,) = client.consumer("orders", group="billing").poll(1, "10s")
    return message


# --- out -----------------------------------------------------------------------------------------


def test_what_is_published_in_a_span_carries_its_context(orders: Client, spans: Spans) -> None:
    with spans.active("one") as one:
        orders.publish("orders", b"1")
    with spans.active("two") as two:
        orders.publish("orders", {"id": 2}, key="k", headers={"source": "web"})

    assert headers(orders) == [
        {"traceparent": traceparent(one)},
        {"source": "web", "traceparent": traceparent(two)},
    ]


@pytest.mark.parametrize("value", [b"small", b"large" * 100, "text"])
def test_a_producer_carries_the_context_of_each_message(orders: Client, spans: Spans, value: bytes | str) -> None:
    with orders.producer(linger="1s") as producer:
        producer.send("orders", value)
        with spans.active("outer") as outer:
            producer.send("orders", value)
            with spans.active("inner") as inner:
                producer.send("orders", value)
                producer.send("orders", value, headers={"a": "b"})
            producer.send("orders", value)
        producer.send("orders", value)

    assert headers(orders) == [
        {},
        {"traceparent": traceparent(outer)},
        {"traceparent": traceparent(inner)},
        {"a": "b", "traceparent": traceparent(inner)},
        {"traceparent": traceparent(outer)},
        {},
    ]


def test_messages_that_are_published_together_have_one_context(orders: Client, spans: Spans) -> None:
    with spans.active("batch") as batch:
        orders.publish_many("orders", [b"a", ("k", b"b")])

    assert headers(orders) == [{"traceparent": traceparent(batch)}] * 2


def test_the_asynchronous_client_does_the_same(orders: Client, address: str, spans: Spans) -> None:
    async def publish() -> list[str]:
        async with AsyncClient(address) as gq:
            with spans.active("one") as one:
                await gq.publish("orders", b"1")
            with spans.active("many") as many:
                await gq.publish_many("orders", [b"2"])
            async with gq.producer() as producer:
                with spans.active("sent") as sent:
                    await producer.send("orders", b"3")
                await producer.send("orders", b"4")
            return [traceparent(span) for span in (one, many, sent)]

    wanted = asyncio.run(publish())

    assert [one.get("traceparent") for one in headers(orders)] == [*wanted, None]


def test_threads_do_not_see_each_others_contexts(orders: Client, spans: Spans) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def publish(number: int) -> str:
        with spans.active(str(number)) as span:
            orders.publish("orders", str(number).encode())
        return traceparent(span)

    with ThreadPoolExecutor(8) as threads:
        wanted = list(threads.map(publish, range(64)))

    assert {int(one.value): one.headers["traceparent"] for one in orders.read("orders")} == dict(enumerate(wanted))


def test_a_trace_that_the_message_names_itself_wins(orders: Client, spans: Spans) -> None:
    own = {"traceparent": TRACEPARENT}

    with use_span(remote(state={"vendor": "1"})), spans.active("span"), orders.producer() as producer:
        orders.publish("orders", b"1", headers=own)
        producer.send("orders", b"2", headers=own)

    assert headers(orders) == [own, own]
    assert own == {"traceparent": TRACEPARENT}


def test_headers_of_the_caller_are_not_changed(orders: Client, spans: Spans) -> None:
    own = {"a": "b"}

    with spans.active("span"):
        orders.publish("orders", b"1", headers=own)

    assert own == {"a": "b"}


def test_the_state_of_a_trace_goes_along(orders: Client) -> None:
    with use_span(remote(state={"vendor": "1", "other": "2"})):
        orders.publish("orders", b"1")
    with use_span(remote(state={"vendor": "x" * 250, "other": "y" * 250, "third": "z" * 250})):
        orders.publish("orders", b"too long a state")

    assert headers(orders) == [
        {"traceparent": TRACEPARENT, "tracestate": "vendor=1,other=2"},
        {"traceparent": TRACEPARENT},
    ]


def test_that_a_trace_is_not_sampled_goes_along(orders: Client) -> None:
    with use_span(remote(sampled=False)):
        orders.publish("orders", b"1")

    assert headers(orders) == [{"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-00"}]


def test_a_span_that_is_none_is_no_context(orders: Client) -> None:
    with use_span(trace.INVALID_SPAN), orders.producer() as producer:
        orders.publish("orders", b"1")
        producer.send("orders", b"2")

    assert headers(orders) == [{}, {}]


# --- in ------------------------------------------------------------------------------------------


def test_spans_in_the_block_of_a_message_are_children_of_whoever_published_it(orders: Client, spans: Spans) -> None:
    with spans.active("publish") as published:
        orders.publish("orders", b"1")

    for message in orders.consume("orders", group="billing", stop="empty"):
        with message, spans.active("work"):
            pass

    work = spans["work"]
    assert work.parent is not None
    assert work.parent.is_remote
    assert work.parent.span_id == published.get_span_context().span_id
    assert work.context is not None
    assert work.context.trace_id == published.get_span_context().trace_id


def test_spans_belong_to_the_trace_of_a_message_that_came_without_one(orders: Client, spans: Spans) -> None:
    orders.publish("orders", b"1")

    message = consume_one(orders)
    with message, spans.active("work"):
        pass

    context = spans["work"].context
    assert context is not None
    assert f"{context.trace_id:032x}" == message.trace.trace_id


def test_a_message_that_is_published_in_the_block_of_another_goes_on_with_its_trace(orders: Client) -> None:
    orders.publish("orders", b"1", headers={"traceparent": TRACEPARENT, "tracestate": "vendor=1"})
    orders.create_topic("invoices", partitions=1)

    with consume_one(orders):
        orders.publish("invoices", b"2")

    assert headers(orders, "invoices") == [{"traceparent": TRACEPARENT, "tracestate": "vendor=1"}]


def test_a_span_that_was_not_sampled_has_no_sampled_children(orders: Client, spans: Spans) -> None:
    orders.publish("orders", b"1", headers={"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-00"})

    with consume_one(orders), spans.active("work") as work:
        assert not work.is_recording()


def test_the_context_ends_with_the_block_however_it_is_left(orders: Client, spans: Spans) -> None:
    orders.publish_many("orders", [b"1", b"2"])
    first, second = orders.consumer("orders", group="billing").poll(2, "10s")

    with spans.active("outer") as outer:
        with pytest.raises(ValueError, match="bad"), first:
            fail(trace.get_current_span() is not outer)
        assert trace.get_current_span() is outer
        with second:
            pass
        assert trace.get_current_span() is outer


def test_blocks_may_stand_in_each_other(orders: Client, spans: Spans) -> None:
    orders.publish_many("orders", [b"1", b"2"])
    outer, inner = orders.consumer("orders", group="billing").poll(2, "10s")

    def current() -> str:
        return f"{trace.get_current_span().get_span_context().trace_id:032x}"

    with outer:
        with inner:
            assert current() == inner.trace.trace_id
        assert current() == outer.trace.trace_id


def test_blocks_that_are_left_in_a_strange_order_leave_nothing_behind(
    orders: Client, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    orders.publish_many("orders", [b"1", b"2"])
    first, second = orders.consumer("orders", group="billing").poll(2, "10s")

    with caplog.at_level(logging.WARNING, "opentelemetry"):
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)

    assert caplog.records == []


def test_a_block_may_be_left_elsewhere(orders: Client, spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    orders.publish_many("orders", [b"1", b"2"])
    first, second = orders.consumer("orders", group="billing").poll(2, "10s")

    with caplog.at_level(logging.WARNING, "opentelemetry"):
        contextvars.copy_context().run(first.__enter__)
        first.__exit__(None, None, None)
        with second:
            contextvars.copy_context().run(second.__exit__, None, None, None)

    assert caplog.records == []


def test_tasks_do_not_see_each_others_messages(orders: Client, address: str, spans: Spans) -> None:
    async def work() -> None:
        async with AsyncClient(address) as gq:
            await gq.publish_many("orders", [b"1", b"2", b"3"])
            consumer = gq.consumer("orders", group="billing")
            messages = await consumer.poll(3, "10s")
            meeting = asyncio.Barrier(3)

            async def settle(message: object) -> None:
                async with message:  # type: ignore[attr-defined]
                    await meeting.wait()
                    with spans.active(f"work {message.offset}"):  # type: ignore[attr-defined]
                        await meeting.wait()
                assert trace.get_current_span() is trace.INVALID_SPAN

            await asyncio.gather(*map(settle, messages))
            for message in messages:
                context = spans[f"work {message.offset}"].context
                assert context is not None
                assert f"{context.trace_id:032x}" == message.trace.trace_id
            await consumer.close()

    asyncio.run(work())


def test_a_block_still_settles_its_message(orders: Client, spans: Spans) -> None:
    orders.publish("orders", b"1")

    for message in orders.consume("orders", group="billing", limit=1):
        with message, spans.active("work"):
            pass

    eventually(lambda: orders.group_positions("billing")[0].lag == 0)


# --- the switch ----------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", ["argument", "environment"])
def test_both_directions_can_be_switched_off(address: str, orders: Client, spans: Spans, switch: str) -> None:
    before = os.environ.get("GOQUEUE_TELEMETRY")
    try:
        if switch == "environment":
            os.environ["GOQUEUE_TELEMETRY"] = "off"
        silent = Client(address, telemetry=False if switch == "argument" else None)
    finally:
        os.environ.pop("GOQUEUE_TELEMETRY", None)
        if before is not None:
            os.environ["GOQUEUE_TELEMETRY"] = before
    with silent as gq:
        with spans.active("span") as span, gq.producer() as producer:
            gq.publish("orders", b"1")
            gq.publish_many("orders", [b"2"])
            producer.send("orders", b"3")
            with gq.consumer("orders", group="billing") as consumer:
                (message,) = consumer.poll(1, "10s")
                with message:
                    assert trace.get_current_span() is span

        assert headers(gq) == [{}, {}, {}]


def test_a_client_that_is_told_so_does_it_whatever_the_environment_says(address: str, orders: Client) -> None:
    os.environ["GOQUEUE_TELEMETRY"] = "0"
    try:
        with Client(address, telemetry=True) as gq, use_span(remote()):
            gq.publish("orders", b"1")
    finally:
        del os.environ["GOQUEUE_TELEMETRY"]

    assert headers(orders) == [{"traceparent": TRACEPARENT}]


WITHOUT = """
import sys
from goqueue import Client
with Client(sys.argv[1]) as gq, gq.producer(linger="1ms") as producer:
    gq.publish("orders", b"1")
    producer.send("orders", b"2").result()
    for message in gq.consume("orders", group="billing", limit=2):
        with message:
            pass
    loaded = [name for name in sys.modules if name.startswith("opentelemetry")]
    assert not loaded, loaded
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    with TracerProvider().get_tracer("late").start_as_current_span("late") as span:
        producer.send("orders", b"3").result()
        producer.send("orders", b"4").result()
        gq.publish("orders", b"5")
"""


def test_nobody_imports_opentelemetry_but_the_application(orders: Client, address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, address], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert ["traceparent" in one for one in headers(orders)] == [False, False, False, True, True]


def test_the_fast_way_to_the_context_leads_to_the_same(spans: Spans) -> None:
    injector = telemetry.injector()
    assert injector is not None

    assert injector.current() is get_current()
    with spans.active("span"):
        assert injector.current() is get_current()


# --- the trace of a message ----------------------------------------------------------------------


def stored(headers: dict[str, str | bytes] | None = None) -> Message:
    raw = encode_headers(headers) if headers else None
    return Message(TopicPartition("orders", 3), 42, 1_700_000_000_000_000_000, 2, 0, None, b"v", raw)


def test_a_message_has_the_trace_of_its_header() -> None:
    found = stored({"traceparent": TRACEPARENT, "gq-trace": "f" * 32}).trace

    assert found == (TRACE_ID, SPAN_ID, True)
    assert found.traceparent == TRACEPARENT
    assert not stored({"traceparent": TRACEPARENT[:-1] + "0"}).trace.is_sampled


def test_a_copy_has_the_trace_of_its_original() -> None:
    assert stored({"gq-trace": TRACE_ID}).trace == (TRACE_ID, "", True)


@pytest.mark.parametrize(
    "given", [None, {"a": "b"}, {"traceparent": "nonsense"}, {"traceparent": b"\xff" * 55}, {"gq-trace": "?"}]
)
def test_any_other_message_has_one_that_is_its_own(given: dict[str, str | bytes] | None) -> None:
    found = stored(given).trace

    assert found == (derived_trace_id("orders", 3, 42, 1_700_000_000_000_000_000), "", True)
    assert found.traceparent.startswith(f"00-{found.trace_id}-")


def test_headers_that_are_damaged_are_no_reason_to_fail(spans: Spans) -> None:
    damaged = Message(TopicPartition("orders", 3), 42, 1, 2, 0, None, b"v", b"\x00\x09traceparent")

    assert damaged.trace.trace_id == derived_trace_id("orders", 3, 42, 1)
    telemetry.enter(damaged)
    telemetry.leave(damaged)


def test_a_message_keeps_its_trace_through_copies(orders: Client) -> None:
    orders.publish("orders", b"1")
    read = next(iter(orders.read("orders")))
    delivered = consume_one(orders)

    assert read.trace == delivered.trace == pickle.loads(pickle.dumps(delivered)).trace
    assert pickle.loads(pickle.dumps(read)) == read
