"""The native framing: the context in NATS headers, the bare value as the payload.

So Penstock's header filters, traces, deduplication, keys and TTL work on typed messages, and other programs read the
payload without Frugal. One table for calls and for scopes:

| of the context        | NATS header                               | in a call's request, a scope's message    |
|-----------------------|-------------------------------------------|-------------------------------------------|
| the method            | `Frugal-Method: place`                    | request                                   |
| the operation         | `Frugal-Operation: OrderPlaced`           | message                                   |
| the type of payload   | `Content-Type`                            | both, and answers                         |
| its schema            | `Penstock-Schema`: `idl.fingerprint`      | message                                   |
| correlation id        | `Frugal-Correlation-Id`                   | both, and answers                         |
| time that is left     | `Frugal-Timeout-Ms: 4900`                 | both                                      |
| variables of a topic  | `Frugal-Topic-region: eu`                 | message                                   |
| reserved `_…` headers | as they are                               | both                                      |
| headers               | as they are (`traceparent`, `tenant`, …)  | both, and answers                         |
| an error              | `Nats-Service-Error-Code: 404` and        | answers, as NATS's services have it       |
|                       | `Nats-Service-Error: text`                | (ADR-32)                                  |

Rules: `Frugal-Method` or `Frugal-Operation` makes a message a native one. Names that begin with `Frugal-`, `Nats-` or
`Penstock-`, and `Content-Type`, are never headers of a context. NATS has no form for a name that is no token (letters,
digits, and !#$%&'*+-.^_`|~), nor for a value with line ends or spaces at its ends: such a context is not sent.
The reply subject tells which request an answer is for, so that no operation id is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from penstock.base.typed_headers import CONTENT_TYPE, OPERATION
from penstock.frugal.codecs import Codec, find_codec, struct_spec
from penstock.frugal.context import HEADER_BYTES_MAX, HEADERS_MAX, TIMEOUT_MS_DEFAULT, Context
from penstock.frugal.contracts import MethodType
from penstock.frugal.errors import (
    DEADLINE_EXCEEDED,
    RESPONSE_TOO_LARGE,
    BadSequenceId,
    CallUnauthenticated,
    CodecError,
    FrameError,
    FrugalError,
    InternalError,
    InvalidMessageType,
    MissingResult,
    ProtocolError,
    ServiceDraining,
    ServiceOverloaded,
    UnknownMethod,
    WrongMethodName,
    answered_error,
    error_number,
)
from penstock.frugal.frames import is_reserved, read_timeout_ms
from penstock.frugal.framing import ERROR_TEXT_MAX, FRUGAL, CallFraming, Packet, Request

METHOD = "Frugal-Method"
CORRELATION_ID = "Frugal-Correlation-Id"
TIMEOUT_MS = "Frugal-Timeout-Ms"
TOPIC = "Frugal-Topic-"
ERROR_CODE = "Nats-Service-Error-Code"
ERROR = "Nats-Service-Error"

_OWN = ("frugal-", "nats-", "penstock-")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # a token, as in HTTP
_LINE_ENDS = re.compile(r"[\r\n\0]")

_CODES = {
    UnknownMethod.number: 404,
    InvalidMessageType.number: 400,
    ProtocolError.number: 400,
    WrongMethodName.number: 502,
    BadSequenceId.number: 502,
    MissingResult.number: 502,
    InternalError.number: 500,
    RESPONSE_TOO_LARGE: 413,
    DEADLINE_EXCEEDED: 408,
    CallUnauthenticated.number: 401,
    ServiceOverloaded.number: 429,
    ServiceDraining.number: 503,
}
"""Codes of NATS's services, which are those of HTTP, by the number of an error; 500 for another."""
_NUMBERS = {400: ProtocolError.number} | {code: number for number, code in _CODES.items() if code not in {400, 502}}


def is_native(headers: Mapping[str, str] | None) -> bool:
    """Return whether a message with these NATS headers is a native one; else it is a frame of frugal-v0."""
    return headers is not None and (METHOD in headers or OPERATION in headers)


def encode_context(
    ctx: Context, now: float, *, content_type: str, method: str = "", operation: str = ""
) -> dict[str, str]:
    """Return the NATS headers of a request to a method, or of a message of an operation.

    CodecError: a header of the context has no form in NATS.
    """
    headers = {METHOD: method} if method else {OPERATION: operation}
    headers[CONTENT_TYPE] = content_type
    headers[CORRELATION_ID] = ctx.correlation_id
    headers[TIMEOUT_MS] = str(max(1, ctx.left_ms(now)))
    headers.update({TOPIC + name: value for name, value in ctx.topic.items()})
    _add(headers, ctx.reserved)
    _add(headers, ctx.headers)
    for name, value in headers.items():
        _check(name, value)
    return headers


def decode_context(headers: Mapping[str, str]) -> Context:
    """Return the context of a received native message. FrameError: more headers than a context may have."""
    shown, reserved = _split(headers)
    topic = {name.removeprefix(TOPIC): value for name, value in headers.items() if name.startswith(TOPIC)}
    timeout = headers.get(TIMEOUT_MS)
    return Context.received(
        headers.get(CORRELATION_ID),
        shown,
        timeout_ms=TIMEOUT_MS_DEFAULT if timeout is None else read_timeout_ms(timeout),
        topic=topic,
        reserved=reserved,
    )


def _split(headers: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the user's headers, and the reserved ones of Frugal."""
    if len(headers) > HEADERS_MAX:
        raise FrameError(f"more than {HEADERS_MAX} headers, the most of one context", 0)
    try:
        size = sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
    except UnicodeEncodeError:  # nats-py keeps such bytes as surrogates
        raise FrameError("a header is not UTF-8", 0) from None
    if size > HEADER_BYTES_MAX:
        raise FrameError(f"more than {HEADER_BYTES_MAX:,} bytes of headers, the most of one context", 0)
    shown: dict[str, str] = {}
    reserved: dict[str, str] = {}
    for name, value in headers.items():
        if name.startswith("_"):
            if is_reserved(name):  # else a frame that the context is passed on in would say it twice
                reserved[name] = value
        elif not _is_own(name):
            shown[name] = value
    return shown, reserved


def _is_own(name: str) -> bool:
    return name == CONTENT_TYPE or name.lower().startswith(_OWN)


def _add(headers: dict[str, str], more: Mapping[str, str]) -> None:
    for name, value in more.items():
        if _is_own(name):
            raise CodecError(f"the header {name!r} is one of NATS or Penstock; the native framing cannot carry it")
        headers[name] = value


def _check(name: str, value: str) -> None:
    if not _NAME.fullmatch(name):
        raise CodecError(f"NATS has no form for the name of the header {name!r}; use letters, digits and -")
    if _LINE_ENDS.search(value) or value != value.strip():
        raise CodecError(f"NATS has no form for the header {name!r}: {value!r}; leave out line ends and outer spaces")


class NativeFraming:
    """The native framing of calls."""

    name = "native"

    def encode_request(
        self, codec: Codec, method: MethodType, ctx: Context, operation_id: int, now: float, arguments: Any
    ) -> Packet:
        """Return the request."""
        headers = encode_context(ctx, now, content_type=codec.content_type, method=method.name)
        return Packet(codec.encode_bare(struct_spec(method.arguments), arguments), headers)

    def decode_answer(self, codec: Codec, method: MethodType, ctx: Context, operation_id: int, packet: Packet) -> Any:
        """Return the struct of the result, and give the context the headers of the answer."""
        assert method.result is not None
        ctx.answered(_split(packet.headers)[0])
        if (code := packet.headers.get(ERROR_CODE)) is not None:
            number = _NUMBERS.get(int(code), int(code)) if re.fullmatch(r"[0-9]{1,9}", code) else 0
            raise answered_error(number, packet.headers.get(ERROR) or "the service gives no reason")
        used = find_codec(packet.headers.get(CONTENT_TYPE, codec.content_type))
        if used is None:
            raise CodecError(f"the answer is of type {packet.headers[CONTENT_TYPE][:80]!r}, which no codec reads")
        return used.decode_bare(packet.data, struct_spec(method.result))

    def decode_request(self, codec: Codec, packet: Packet) -> Request:
        """Return a received request; its codec is that of its content type."""
        ctx = decode_context(packet.headers)
        method, content_type = packet.headers[METHOD], packet.headers.get(CONTENT_TYPE, codec.content_type)
        used = find_codec(content_type)
        problem = None
        if used is None:
            problem = CodecError(f"the request is of type {content_type[:80]!r}, which no codec reads")
        return Request(self, used or codec, ctx, 0, method, packet.data, problem=problem)

    def encode_result(self, request: Request, result: Any) -> Packet:
        """Return the answer with the struct of a result."""
        headers = {CONTENT_TYPE: request.codec.content_type, **_answer_headers(request, with_headers=True)}
        return Packet(request.codec.encode_bare(struct_spec(type(result)), result), headers)

    def encode_error(self, request: Request, error: FrugalError, *, with_headers: bool = True) -> Packet:
        """Return the answer with an error, in a line of text, and with the headers that the handler has set."""
        number = error_number(error)
        code = _CODES.get(number, number if 400 <= number < 600 else 500)
        text = " ".join(str(error).split())[:ERROR_TEXT_MAX].strip()
        headers = _answer_headers(request, with_headers=with_headers)
        return Packet(b"", {ERROR_CODE: str(code), ERROR: text or "error", **headers})


def _answer_headers(request: Request, *, with_headers: bool) -> dict[str, str]:
    """Return the headers of an answer. CodecError: NATS has no form for one that the handler has set."""
    headers = {CORRELATION_ID: request.ctx.correlation_id}
    if with_headers:
        _add(headers, request.ctx.response_headers)
        for name, value in headers.items():
            _check(name, value)
    return headers


NATIVE = NativeFraming()
FRAMINGS: dict[str, CallFraming] = {FRUGAL.name: FRUGAL, NATIVE.name: NATIVE}


def framing_of(packet: Packet) -> CallFraming:
    """Return the framing of a received request."""
    return NATIVE if METHOD in packet.headers else FRUGAL
