"""Framings of calls: how a request and its answer become the bytes and NATS headers of one message, and back.

| of a call   | `frugal-v0`                         | `native`                                                |
|-------------|-------------------------------------|---------------------------------------------------------|
| context     | headers in the frame                | NATS headers (`native.py` has the table)                |
| method      | name of the Thrift message          | header `Frugal-Method`                                  |
| payload     | frame with a Thrift message         | the bare struct of the arguments, or of the result      |
| error       | TApplicationException in an answer  | headers `Nats-Service-Error-Code`, `Nats-Service-Error` |

Rules: a client picks one; a server understands both, tells them apart by the header `Frugal-Method`, and answers as it
was asked. Bytes that no answer can be given to are a `FrameError`; a request that can be answered, but not read, is a
`Request` with its `problem`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from penstock.frugal.codecs import ApplicationException, Codec, MessageKind, struct_spec
from penstock.frugal.context import Context
from penstock.frugal.contracts import MethodType
from penstock.frugal.errors import (
    BadSequenceId,
    CodecError,
    FrugalError,
    InvalidMessageType,
    WrongMethodName,
    answered_error,
    error_number,
)
from penstock.frugal.frames import decode_answer, decode_request, encode_answer, encode_request

_EXCEPTION_SPEC = struct_spec(ApplicationException)
_CALL, _REPLY, _EXCEPTION, _ONEWAY = MessageKind.CALL, MessageKind.REPLY, MessageKind.EXCEPTION, MessageKind.ONEWAY
ERROR_TEXT_MAX = 1024
"""Most characters of an error's text that an answer carries."""


_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Packet(msgspec.Struct, frozen=True, gc=False):
    """Content of one message of a transport: bytes, and NATS headers; frugal-v0 has none."""

    data: bytes
    headers: Mapping[str, str] = _NO_HEADERS

    @property
    def size(self) -> int:
        """Return the bytes that NATS counts: payload and headers."""
        if not self.headers:
            return len(self.data)
        lines = sum(len(name.encode()) + len(value.encode()) + 4 for name, value in self.headers.items())
        return len(self.data) + lines + _HEADER_BLOCK_BYTES


_HEADER_BLOCK_BYTES = len(b"NATS/1.0\r\n\r\n")


class Request(msgspec.Struct, frozen=True):
    """A received request whose arguments are still bytes: `data` from `start` on.

    `problem`: why it cannot be read; it is answered with that.
    """

    framing: CallFraming
    codec: Codec
    ctx: Context
    operation_id: int
    method: str
    data: bytes
    start: int = 0
    problem: FrugalError | None = None

    def decode_arguments(self, kind: type[Any]) -> Any:
        """Return the struct of the arguments. CodecError: the bytes are none."""
        if self.start:
            return self.codec.decode_value(self.data, self.start, struct_spec(kind))
        return self.codec.decode_bare(self.data, struct_spec(kind))


class CallFraming(Protocol):
    """A form of requests and answers."""

    @property
    def name(self) -> str:
        """Return the framing's name: "frugal-v0"."""

    def encode_request(
        self, codec: Codec, method: MethodType, ctx: Context, operation_id: int, now: float, arguments: Any
    ) -> Packet:
        """Return the request. CodecError: an argument does not fit its type."""

    def decode_answer(self, codec: Codec, method: MethodType, ctx: Context, operation_id: int, packet: Packet) -> Any:
        """Return the struct of the result, and give the context the headers of the answer.

        ApplicationError, DeadlineExceeded, ResponseTooLarge: the server says so. FrameError, CodecError: no answer.
        """

    def decode_request(self, codec: Codec, packet: Packet) -> Request:
        """Return a received request. FrameError: none that can be answered."""

    def encode_result(self, request: Request, result: Any) -> Packet:
        """Return the answer with the struct of a result."""

    def encode_error(self, request: Request, error: FrugalError, *, with_headers: bool = True) -> Packet:
        """Return the answer with an error, and with the headers that the handler and middleware have set."""


class FrugalFraming:
    """The framing of Frugal, version 0."""

    name = "frugal-v0"

    def encode_request(
        self, codec: Codec, method: MethodType, ctx: Context, operation_id: int, now: float, arguments: Any
    ) -> Packet:
        """Return the request; a oneway is a CALL too, as Frugal's Python says."""
        message = codec.encode(method.name, _CALL, 0, struct_spec(method.arguments), arguments)
        return Packet(encode_request(ctx, operation_id, now, message))

    def decode_answer(self, codec: Codec, method: MethodType, ctx: Context, operation_id: int, packet: Packet) -> Any:
        """Return the struct of the result, and give the context the headers of the answer."""
        assert method.result is not None
        said_id, headers, message = decode_answer(packet.data)
        if said_id != str(operation_id):
            raise BadSequenceId(f"the answer to operation {operation_id} says that it is one to {said_id!r}")
        if headers:
            ctx.answered(headers)
        header, start = codec.decode_header(message)
        if header.kind is _EXCEPTION:
            said = codec.decode_value(message, start, _EXCEPTION_SPEC)
            raise answered_error(said.type, said.message or "the service gives no reason")
        if header.name != method.name:
            raise WrongMethodName(f"the answer to {method.name!r} is one to {header.name!r}")
        if header.kind is not _REPLY:
            raise InvalidMessageType(f"the answer to {method.name!r} is a {header.kind.name}")
        return codec.decode_value(message, start, struct_spec(method.result))

    def decode_request(self, codec: Codec, packet: Packet) -> Request:
        """Return a received request. FrameError: it is no frame, or has no operation id."""
        ctx, operation_id, message = decode_request(packet.data)
        try:
            header, start = codec.decode_header(message)
        except CodecError as error:
            return Request(self, codec, ctx, operation_id, "", b"", problem=error)
        problem = None
        if header.kind is not _CALL and header.kind is not _ONEWAY:
            problem = InvalidMessageType(f"a {header.kind.name} is no request")
        return Request(self, codec, ctx, operation_id, header.name, message, start, problem)

    def encode_result(self, request: Request, result: Any) -> Packet:
        """Return the answer with the struct of a result."""
        message = request.codec.encode(request.method, _REPLY, 0, struct_spec(type(result)), result)
        return Packet(encode_answer(request.ctx, request.operation_id, message))

    def encode_error(self, request: Request, error: FrugalError, *, with_headers: bool = True) -> Packet:
        """Return the answer with an error, and with the headers that the handler and middleware have set."""
        said = ApplicationException(str(error)[:ERROR_TEXT_MAX], error_number(error))
        message = request.codec.encode(request.method, _EXCEPTION, 0, _EXCEPTION_SPEC, said)
        ctx = request.ctx if with_headers else Context(request.ctx.correlation_id)
        return Packet(encode_answer(ctx, request.operation_id, message))


FRUGAL = FrugalFraming()
