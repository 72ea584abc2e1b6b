"""What becomes of traced messages, on a node whose disk and time the test moves."""

from __future__ import annotations

from itertools import count

import pytest

from penstock.base import limits
from penstock.broker.observability.otlp import Exporter, endpoint_of
from penstock.broker.tracing import TraceSpan, Tracing
from tests.groups import Message
from tests.unit.node.harness import Broker

VALUE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = b"NATS/1.0\r\ntraceparent: " + VALUE + b"\r\n\r\n"
TRACED: Message = (b"orders", b"_INBOX.a", HEADERS, b"x")
PLAIN: Message = (b"orders", b"_INBOX.a", None, b"x")


class Traced:
    """A broker, and the spans that it gave."""

    def __init__(self, **config: object) -> None:
        self.spans: list[TraceSpan] = []
        self.broker = Broker().start()
        self.broker.create("orders", "orders", **config)
        ids = count(1)
        self.tracing = Tracing(self.spans.extend, lambda: self.broker.clock.now, lambda _bits: next(ids))
        self.broker.node.meters.tracer = self.tracing

    def look(self) -> list[tuple[str, str]]:
        self.tracing.record()
        self.tracing.answered()
        return [(span.name, span.error) for span in self.spans]


def test_spans_end_when_each_step_is_done() -> None:
    traced = Traced()
    broker = traced.broker
    broker.disk_runs_at_once = False
    began_us = broker.clock.now.wall_us
    broker.deliver([PLAIN, TRACED, PLAIN])
    assert traced.look() == [], "it waits for the disk"
    broker.clock.advance_ms(7)
    broker.settle()
    assert traced.look() == [("penstock.append", ""), ("penstock.replicate", ""), ("penstock.ack", "")]
    append, replicate, ack = traced.spans
    assert (append.begin_us, append.end_us) == (began_us, began_us)
    assert (replicate.begin_us, replicate.end_us) == (began_us, began_us + 7_000)
    assert ack.begin_us == began_us + 7_000
    assert (append.attributes["penstock.offset"], append.attributes["messaging.batch.message_count"]) == (1, 3)
    assert (f"{append.trace_id:032x}", f"{append.parent_id:016x}") == tuple(VALUE.decode().split("-")[1:3])
    assert traced.look() == traced.look(), "each is told once"


def test_a_message_whose_log_does_not_come_ends_with_an_error() -> None:
    traced = Traced()
    traced.broker.disk_runs_at_once = False
    traced.broker.deliver([TRACED])
    traced.look()
    traced.broker.clock.advance_ms(limits.TRACE_OPEN_MS + 1)
    assert traced.look() == [("penstock.append", ""), ("penstock.replicate", "it was not committed in time")]
    traced.broker.deliver([TRACED])
    traced.look()
    traced.tracing.stop()
    assert traced.look()[2:] == [("penstock.append", ""), ("penstock.replicate", "the broker was stopped")]


def test_of_too_many_some_are_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRACES_OPEN_MAX", 3)
    traced = Traced()
    traced.broker.disk_runs_at_once = False
    traced.broker.deliver([TRACED] * 5)
    assert traced.tracing.dropped == 2
    traced.broker.settle()
    assert len(traced.look()) == 3 * 3
    traced.broker.disk_runs_at_once = True
    traced.broker.deliver([TRACED])
    assert len(traced.look()) == 4 * 3, "there is room again"


def test_spans_that_find_no_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPANS_WAITING_MAX", 5)
    exporter = Exporter("http://127.0.0.1:1", version="test", broker_id=1)  # whose thread was not started
    span = TraceSpan("x", 1, 2, 3, False, 0, 1, {})
    exporter.put([span] * 3)
    exporter.put([span] * 3)
    assert exporter.dropped == 3
    exporter.put([span] * 2)
    assert exporter.dropped == 3


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://h:4318", "http://h:4318/v1/traces"),
        ("http://h:4318/", "http://h:4318/v1/traces"),
        ("https://h/otlp/v1/traces", "https://h/otlp/v1/traces"),
    ],
)
def test_an_address_alone_stands_for_the_usual_path(url: str, endpoint: str) -> None:
    assert endpoint_of(url) == endpoint
