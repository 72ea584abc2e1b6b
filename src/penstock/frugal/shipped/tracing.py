"""Spans of calls with OpenTelemetry (extra `otel`); the context travels as the header `traceparent` (W3C).

| side       | kind of span | parent                                 | header                                    |
|------------|--------------|----------------------------------------|-------------------------------------------|
| client     | CLIENT       | the current span                       | set                                       |
| server     | SERVER       | what the header says                   | read                                      |
| publisher  | PRODUCER     | the current span                       | set; Penstock traces the message by it in |
|            |              |                                        | the native framing                        |
| subscriber | CONSUMER     | what the header says                   | read                                      |
"""

from __future__ import annotations

from typing import Any

from penstock.base.errors import OperationalError
from penstock.base.extras import how_to_install
from penstock.frugal.context import Context
from penstock.frugal.middleware import Call, Middleware, Proceed, Side

_NAME = "penstock.frugal"


def trace(tracer_provider: Any = None) -> Middleware:
    """Return the middleware. `tracer_provider`: one of OpenTelemetry; default: the program's global one.

    OperationalError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry import trace as api
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        raise OperationalError(f"OpenTelemetry is not installed: {how_to_install('otel')}") from None
    tracer = api.get_tracer(_NAME, tracer_provider=tracer_provider)
    propagator = TraceContextTextMapPropagator()
    kinds = {
        Side.CLIENT: api.SpanKind.CLIENT,
        Side.SERVER: api.SpanKind.SERVER,
        Side.PUBLISHER: api.SpanKind.PRODUCER,
        Side.SUBSCRIBER: api.SpanKind.CONSUMER,
    }

    async def traced(ctx: Context, call: Call, proceed: Proceed) -> Any:
        is_sender = call.side in {Side.CLIENT, Side.PUBLISHER}
        parent = None if is_sender else propagator.extract(dict(ctx.headers))
        with tracer.start_as_current_span(
            str(call), context=parent, kind=kinds[call.side], attributes=_attributes(ctx, call)
        ) as span:
            if is_sender:
                carrier: dict[str, str] = {}
                propagator.inject(carrier)
                for name, value in carrier.items():
                    ctx.set_header(name, value)
            try:
                return await proceed(ctx, call)
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                raise  # OpenTelemetry records it

    return traced


def _attributes(ctx: Context, call: Call) -> dict[str, Any]:
    attributes: dict[str, Any] = {"frugal.correlation_id": ctx.correlation_id}
    if call.side in {Side.CLIENT, Side.SERVER}:
        return attributes | {"rpc.system": "frugal", "rpc.service": call.owner, "rpc.method": call.name}
    return attributes | {
        "messaging.system": "nats",
        "messaging.destination.name": call.subject,
        "messaging.operation.name": call.name,
    }
