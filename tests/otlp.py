"""A receiver of OTLP over HTTP, on a real socket, that records the spans."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.broker_process import DEADLINE_S


class Received(NamedTuple):
    """A received span."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    begin_ns: int
    end_ns: int
    attributes: dict[str, Any]
    error: str
    resource: dict[str, Any]


class Receiver:
    """`url`: value for `otlp_endpoint`; `status`: HTTP status of the answers."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.status = 200
        self.paths: set[str] = set()
        self.spans: list[Received] = []
        self.changed = threading.Condition()

    def wait(self, count: int, timeout_s: float = DEADLINE_S) -> list[Received]:
        """Wait for `count` spans; return all."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.spans) >= count, timeout_s), self.spans
            return list(self.spans)


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


def _spans(request: ExportTraceServiceRequest) -> Iterator[Received]:
    for of_resource in request.resource_spans:
        resource = _plain(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                times = span.start_time_unix_nano, span.end_time_unix_nano
                error = span.status.message if span.status.code == 2 else ""
                yield Received(span.name, *ids, *times, _plain(span.attributes), error, resource)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver within the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            with receiver.changed:
                receiver.paths.add(self.path)
                if receiver.status == 200:
                    receiver.spans += _spans(ExportTraceServiceRequest.FromString(body))
                receiver.changed.notify_all()
            self.send_response(receiver.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Suppress the log of requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
