"""The shipped middleware, each in a chain with an end that the test gives."""

import asyncio
import logging
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.parser import text_string_to_metric_families

from penstock.frugal.context import Context
from penstock.frugal.errors import (
    CallUnauthenticated,
    CircuitOpen,
    DeadlineExceeded,
    Disconnected,
    InternalError,
    ServiceNotAvailable,
    ServiceOverloaded,
    TransportClosed,
)
from penstock.frugal.local_transport import LocalTransport
from penstock.frugal.middleware import Call, Side, chain
from penstock.frugal.processor import Processor
from penstock.frugal.shipped.authentication import one_of, require_token, with_token
from penstock.frugal.shipped.call_log import log_calls
from penstock.frugal.shipped.circuit_breaker import CircuitBreaker, CircuitState
from penstock.frugal.shipped.deadline import limit_time
from penstock.frugal.shipped.metrics import CallMetrics
from penstock.frugal.shipped.retry import retry
from penstock.frugal.shipped.tracing import trace
from tests.frugal_shop import ORDER, SHOP, NotFound, Shop, ShopClient

CALL = Call(Side.CLIENT, "Shop", "count", ("x",), subject="shop", is_idempotent=True)


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


class End:
    """The end of a chain: raises or returns what comes next of a list, and takes time of the clock."""

    def __init__(self, *outcomes, clock=None, takes_s=0.0):
        self.outcomes = list(outcomes)
        self.calls = 0
        self._clock = clock
        self._takes_s = takes_s

    async def __call__(self, ctx, call):
        self.calls += 1
        if self._clock is not None:
            self._clock.now_s += self._takes_s
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


async def run(middleware, end, call=CALL, ctx=None):
    return await chain(middleware, end)(ctx or Context("c1"), call)


# Log


async def test_each_call_has_a_line(caplog):
    clock = Clock()
    log = log_calls(now=clock)
    caplog.set_level(logging.INFO, "penstock.frugal.calls")
    await run([log], End(1, clock=clock, takes_s=0.25))
    with pytest.raises(KeyError):
        await run([log], End(KeyError("a secret")))
    assert [(each.levelname, each.message) for each in caplog.records] == [
        ("INFO", "client Shop.count ok 250.0 ms, correlation id 'c1'"),
        ("WARNING", "client Shop.count KeyError 0.0 ms, correlation id 'c1'"),
    ]


# Metrics


async def test_metrics_count_calls_by_their_outcome():
    clock = Clock()
    metrics = CallMetrics(clock)
    await run([metrics], End(1, clock=clock, takes_s=0.25))
    await run([metrics], End(2))
    for error in (NotFound(number=1), InternalError("x")):
        with pytest.raises(type(error)):
            await run([metrics], End(error), replace(CALL, side=Side.SERVER, owner='a"\\\n'))
    pages = {each.name: each for each in text_string_to_metric_families(metrics.page())}
    counted = {
        (each.labels["side"], each.labels["owner"], each.labels["outcome"]): each.value
        for each in pages["penstock_frugal_calls"].samples
    }
    assert counted == {
        ("client", "Shop", "ok"): 2,
        ("server", 'a"\\\n', "exception"): 1,
        ("server", 'a"\\\n', "InternalError"): 1,
    }
    took = [each for each in pages["penstock_frugal_call_seconds"].samples if each.labels["side"] == "client"]
    assert {each.name[-4:]: each.value for each in took if each.name[-4:] in {"ount", "_sum"}} == {
        "ount": 2,
        "_sum": 0.25,
    }
    buckets = [each.value for each in took if each.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert (buckets[0], buckets[-1]) == (1, 2)
    assert all(each.value == 0 for each in pages["penstock_frugal_calls_in_progress"].samples)


async def test_metrics_show_what_is_under_way():
    metrics = CallMetrics()
    seen = []

    async def end(ctx, call):
        seen.append(metrics.page())

    await run([metrics], end)
    assert 'penstock_frugal_calls_in_progress{side="client",owner="Shop",name="count"} 1\n' in seen[0]


# Tracing


@pytest.mark.parametrize("framing", ["frugal-v0", "native"])
async def test_a_trace_goes_from_the_client_to_the_handler(framing):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traced = trace(provider)
    shop = Shop()
    transport = LocalTransport(Processor([(SHOP, shop)], middleware=[traced], now=Clock()))
    async with ShopClient(transport, SHOP, middleware=[traced], framing=framing, now=Clock()) as client:
        await client.ping(Context("c1"))
        with pytest.raises(NotFound):
            await client.place(Context("c2"), replace(ORDER, number=404), 1)
    server, asked, failed, _ = exporter.get_finished_spans()
    assert (server.kind, asked.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    assert server.parent is not None
    assert server.parent.span_id == asked.context.span_id
    assert server.context.trace_id == asked.context.trace_id
    assert dict(server.attributes) == {
        "frugal.correlation_id": "c1",
        "rpc.system": "frugal",
        "rpc.service": "Shop",
        "rpc.method": "ping",
    }
    assert "traceparent" in shop.contexts[0].headers
    assert (failed.status.status_code, dict(failed.attributes or {})["error.type"]) == (StatusCode.ERROR, "NotFound")
    provider.shutdown()


async def test_a_receiver_takes_the_trace_from_the_header():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    ctx = Context(headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
    await run([trace(provider)], End(1), replace(CALL, side=Side.SUBSCRIBER), ctx)
    (span,) = exporter.get_finished_spans()
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    assert (span.kind, dict(span.attributes or {})["messaging.destination.name"]) == (SpanKind.CONSUMER, "shop")
    provider.shutdown()


# Authentication


@pytest.mark.parametrize("framing", ["frugal-v0", "native"])
async def test_a_server_may_require_a_token(framing):
    shop = Shop()
    guard = require_token(one_of(["old", "new"]), open_methods={"ping"})
    transport = LocalTransport(Processor([(SHOP, shop)], middleware=[guard], now=Clock()))

    def client(*middleware):
        return ShopClient(transport, SHOP, middleware=middleware, framing=framing, now=Clock())

    assert await client(with_token("new")).count(Context(), "x") == 1
    assert await client(with_token(lambda: "old")).count(Context(), "x") == 1
    await client().ping(Context())
    with pytest.raises(CallUnauthenticated, match="has no header 'authorization'"):
        await client().count(Context(), "x")
    with pytest.raises(CallUnauthenticated, match="does not accept") as raised:
        await client(with_token("wrong")).count(Context(), "x")
    assert "wrong" not in str(raised.value)


async def test_a_check_may_ask_elsewhere():
    async def check(token, call):
        return (token, str(call)) == ("a", "Shop.count")

    assert await run([require_token(check)], End(5), ctx=Context(headers={"authorization": "a"})) == 5
    with pytest.raises(CallUnauthenticated):
        await run([require_token(check)], End(5), ctx=Context(headers={"authorization": "b"}))


def test_tokens_are_not_empty():
    for tokens in ([], [""]):
        with pytest.raises(ValueError, match="no empty one"):
            one_of(tokens)


# Deadline


async def test_the_time_of_a_call_is_limited():
    cancelled = asyncio.Event()

    async def forever(ctx, call):
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    ctx = Context(timeout_ms=60_000)
    with pytest.raises(DeadlineExceeded, match=r"Shop\.count took longer than it may, which is 20 ms"):
        await run([limit_time(20)], forever, ctx=ctx)
    assert cancelled.is_set()


async def test_the_earlier_deadline_counts():
    clock = Clock()
    for own_s, wanted_s in ((0.5, 0.5), (5.0, 1.0)):
        ctx = Context()
        ctx.deadline = clock.now_s + own_s
        assert await run([limit_time(1_000, now=clock)], End(1), ctx=ctx) == 1
        assert ctx.deadline == clock.now_s + wanted_s


async def test_a_time_out_of_the_handler_is_its_own():
    with pytest.raises(TimeoutError) as raised:
        await run([limit_time(1_000)], End(TimeoutError("mine")))
    assert not isinstance(raised.value, DeadlineExceeded)
    with pytest.raises(ValueError, match="from 1 on"):
        limit_time(0)


# Retry


class Pauses:
    def __init__(self, clock):
        self.slept = []
        self._clock = clock

    async def sleep(self, seconds):
        self.slept.append(seconds)
        self._clock.now_s += seconds


def retrying(clock, pauses, tries_max=4):
    return retry(
        tries_max, pause_ms_first=100, pause_ms_max=300, now=clock, sleep=pauses.sleep, uniform=lambda _, most: most
    )


async def test_retries_pause_longer_each_time():
    clock = Clock()
    pauses = Pauses(clock)
    end = End(ServiceNotAvailable("a"), ServiceOverloaded("b"), Disconnected("c"), 7)
    assert await run([retrying(clock, pauses)], end) == 7
    assert pauses.slept == [0.1, 0.2, 0.3]


async def test_the_last_try_says_what_went_wrong():
    clock = Clock()
    end = End(*(ServiceNotAvailable(str(number)) for number in range(4)), 7)
    with pytest.raises(ServiceNotAvailable, match="3"):
        await run([retrying(clock, Pauses(clock))], end)
    assert end.calls == 4


async def test_a_pause_ends_before_the_deadline():
    clock = Clock()
    pauses = Pauses(clock)
    ctx = Context()
    ctx.deadline = clock.now_s + 0.25
    end = End(*(ServiceNotAvailable("x") for _ in range(4)))
    with pytest.raises(ServiceNotAvailable):
        await run([retrying(clock, pauses)], end, ctx=ctx)
    assert pauses.slept == [0.1]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (replace(CALL, is_idempotent=False), ServiceNotAvailable("x")),
        (replace(CALL, is_oneway=True), ServiceNotAvailable("x")),
        (CALL, DeadlineExceeded("x")),
        (CALL, TransportClosed("x")),
        (CALL, InternalError("x")),
        (CALL, NotFound(number=1)),
    ],
)
async def test_what_is_not_retried(call, error):
    clock = Clock()
    end = End(error, 7)
    with pytest.raises(type(error)):
        await run([retrying(clock, Pauses(clock))], end, call)
    assert end.calls == 1


async def test_retries_of_a_client_are_requests_of_their_own():
    clock = Clock()
    pauses = Pauses(clock)
    refusals = [ServiceOverloaded("a"), ServiceOverloaded("b")]

    async def refuse(ctx, call, proceed):
        if refusals:
            raise refusals.pop()
        return await proceed(ctx, call)

    transport = LocalTransport(Processor([(SHOP, Shop())], middleware=[refuse], now=clock))
    client = ShopClient(transport, SHOP, middleware=[retrying(clock, pauses)], now=clock)
    assert await client.count(Context(), "Ann") == 3
    assert transport.next_operation_id() == 4


def test_tries_and_pauses_are_sensible():
    for wrong in ({"tries_max": 0}, {"pause_ms_first": -1}, {"pause_ms_first": 10, "pause_ms_max": 5}):
        with pytest.raises(ValueError, match="the longest last"):
            retry(**wrong)


# Circuit breaker


async def fail(breaker, error=None):
    with pytest.raises(type(error or Disconnected(""))):
        await run([breaker], End(error or Disconnected("x")))


async def test_a_breaker_opens_probes_and_closes():
    clock = Clock()
    breaker = CircuitBreaker(2, open_s=5.0, now=clock)
    await fail(breaker)
    assert await run([breaker], End(1)) == 1  # not in a row
    await fail(breaker)
    assert breaker.state is CircuitState.CLOSED
    await fail(breaker)
    assert breaker.state is CircuitState.OPEN
    end = End(1)
    with pytest.raises(CircuitOpen, match=r"Shop\.count was not called: its service has failed 2 times in a row"):
        await run([breaker], end)
    assert end.calls == 0
    clock.now_s += 5
    await fail(breaker)  # the probe
    assert breaker.state is CircuitState.OPEN
    clock.now_s += 4.9
    with pytest.raises(CircuitOpen):
        await run([breaker], End(1))
    clock.now_s += 0.1
    assert await run([breaker], End(1)) == 1
    assert breaker.state is CircuitState.CLOSED


async def test_one_probe_at_a_time_and_a_cancelled_one_tells_nothing():
    clock = Clock()
    breaker = CircuitBreaker(1, open_s=5.0, now=clock)
    await fail(breaker)
    clock.now_s += 5
    begun = asyncio.Event()

    async def forever(ctx, call):
        begun.set()
        await asyncio.Event().wait()

    probe = asyncio.create_task(run([breaker], forever))
    await begun.wait()
    with pytest.raises(CircuitOpen):
        await run([breaker], End(1))
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    assert await run([breaker], End(1)) == 1
    assert breaker.state is CircuitState.CLOSED


async def test_a_call_from_before_does_not_close_it():
    breaker = CircuitBreaker(1, now=Clock())
    gate, begun = asyncio.Event(), asyncio.Event()

    async def slow(ctx, call):
        begun.set()
        await gate.wait()
        return 1

    task = asyncio.create_task(run([breaker], slow))
    await begun.wait()
    await fail(breaker)
    gate.set()
    assert await task == 1
    assert breaker.state is CircuitState.OPEN


async def test_a_failure_from_before_does_not_end_the_probe():
    clock = Clock()
    breaker = CircuitBreaker(1, open_s=5.0, now=clock)
    old, probe = asyncio.Event(), asyncio.Event()
    begun: asyncio.Queue[str] = asyncio.Queue()

    async def slow(ctx, call):
        begun.put_nowait(call.name)
        await (old if call.name == "old" else probe).wait()
        if call.name == "old":
            raise Disconnected("old")
        return 1

    first = asyncio.create_task(run([breaker], slow, replace(CALL, name="old")))
    await begun.get()
    await fail(breaker)
    clock.now_s += 5
    second = asyncio.create_task(run([breaker], slow))
    await begun.get()
    old.set()
    with pytest.raises(Disconnected, match="old"):
        await first
    assert breaker.state is CircuitState.PROBING
    probe.set()
    assert await second == 1
    assert breaker.state is CircuitState.CLOSED


async def test_answers_of_a_service_that_works_are_no_failures():
    breaker = CircuitBreaker(1, now=Clock())
    for error in (NotFound(number=1), CallUnauthenticated("x"), KeyError("x")):
        await fail(breaker, error)
    assert breaker.state is CircuitState.CLOSED
    with pytest.raises(ValueError, match="begins with 1"):
        CircuitBreaker(0)
