"""Exports spans by OTLP over HTTP, in a thread of its own, with OpenTelemetry's exporter (the extra `otel`).

Rules: `put` never waits: if the queue is full, spans are dropped and counted. The exporter retries for a while; spans
it could not deliver count as dropped, too. OpenTelemetry is imported when the first Exporter is made: the import is
slow, and needless without tracing.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any
from urllib.parse import urlsplit

from penstock.base import limits
from penstock.base.errors import ConfigError
from penstock.base.extras import how_to_install
from penstock.base.importing import undisturbed
from penstock.broker.tracing import TraceSpan

_log = logging.getLogger("penstock.otlp")

_SPANS_AT_ONCE_MAX = 512  # per request
_OTLP_TIMEOUT_S = 10  # per request, retries included
_PATH = "/v1/traces"


def endpoint_of(url: str) -> str:
    """Return the URL for spans: an address without a path gets OTLP's default path."""
    return url.rstrip("/") + _PATH if urlsplit(url).path in ("", "/") else url


class Exporter:
    """Exports spans on a thread; call `start` first. Raise ConfigError if the extra is not installed."""

    def __init__(self, url: str, *, version: str, broker_id: int) -> None:
        self.exported = self.dropped = 0
        self._queue: deque[TraceSpan] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="penstock-otlp", daemon=True)
        try:
            with undisturbed():
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
                from opentelemetry.sdk.resources import Resource
        except ImportError as error:
            text = f"otlp_endpoint: needs OpenTelemetry: {how_to_install('otel')}"
            raise ConfigError([f"{text} ({error})"]) from None
        self._exporter = OTLPSpanExporter(endpoint=endpoint_of(url), timeout=_OTLP_TIMEOUT_S)
        self._resource = Resource.create(
            {
                "service.name": "penstock",
                "service.version": version,
                "service.instance.id": f"broker-{broker_id}",
            }
        )

    def start(self) -> None:
        self._thread.start()

    def put(self, spans: list[TraceSpan]) -> None:
        """Queue spans for export, all of them or none."""
        if len(self._queue) + len(spans) > limits.SPANS_WAITING_MAX:
            self.dropped += len(spans)
            return
        self._queue.extend(spans)
        if not self._wake.is_set():
            self._wake.set()

    def stop(self, timeout_s: float) -> None:
        """Export what is queued within `timeout_s`, then stop; idempotent."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _run(self) -> None:
        while not self._stopping or self._queue:
            self._wake.wait()
            self._wake.clear()
            while self._queue:
                self._export([self._queue.popleft() for _ in range(min(len(self._queue), _SPANS_AT_ONCE_MAX))])

    def _export(self, spans: list[TraceSpan]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            result = self._exporter.export([self._readable(span) for span in spans])
        except Exception:  # noqa: BLE001 (no error of the exporter may stop the thread)
            _log.exception("cannot export spans")
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
        else:
            self.dropped += len(spans)

    def _readable(self, span: TraceSpan) -> Any:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
        from opentelemetry.trace.status import Status, StatusCode

        def context(span_id: int, *, is_remote: bool) -> SpanContext:
            return SpanContext(span.trace_id, span_id, is_remote, TraceFlags(TraceFlags.SAMPLED))

        return ReadableSpan(
            name=span.name,
            context=context(span.span_id, is_remote=False),
            parent=context(span.parent_id, is_remote=span.is_remote),
            resource=self._resource,
            attributes=dict(span.attributes),
            kind=SpanKind.CONSUMER if span.is_remote else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=span.begin_us * 1_000,
            end_time=max(span.begin_us, span.end_us) * 1_000,
        )
