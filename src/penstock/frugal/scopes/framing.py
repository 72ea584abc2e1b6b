"""Messages of scopes as bytes, in both framings, and back.

| framing     | payload                                                            | context          |
|-------------|--------------------------------------------------------------------|------------------|
| `frugal-v0` | Frugal's frame: headers, then a Thrift message (operation, value)  | in the frame     |
| `native`    | the bare value                                                     | in NATS headers  |

Rules: a receiver takes both, and tells them apart by the header `Frugal-Operation`; old publishers need no change. In
frugal-v0 the codec is agreed beforehand, as with Frugal; in native framing the media type names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from penstock.base.typed_headers import CONTENT_TYPE, OPERATION, SCHEMA
from penstock.frugal.codecs import Codec, MessageKind, find_codec
from penstock.frugal.context import Context
from penstock.frugal.contracts import OperationType
from penstock.frugal.errors import CodecError
from penstock.frugal.frames import decode_request, encode_request
from penstock.frugal.native import decode_context, encode_context, is_native


class ScopeFraming(StrEnum):
    """Encoding of context and value as a message."""

    FRUGAL = "frugal-v0"
    NATIVE = "native"


class EncodedMessage(msgspec.Struct, frozen=True):
    """A message for NATS; `headers` may be empty."""

    payload: bytes
    headers: dict[str, str]


def encode_message(
    framing: ScopeFraming,
    codec: Codec,
    ctx: Context,
    operation: OperationType,
    message: Any,
    *,
    operation_id: int,
    now: float,
) -> EncodedMessage:
    """Return a message of a scope. CodecError: it does not fit its type. FrameError: too many headers."""
    if framing is ScopeFraming.NATIVE:
        made = encode_context(ctx, now, content_type=codec.content_type, operation=operation.name)
        if operation.schema:
            made[SCHEMA] = operation.schema
        return EncodedMessage(codec.encode_bare(operation.spec, message), made)
    body = codec.encode(operation.name, MessageKind.CALL, 0, operation.spec, message)
    return EncodedMessage(encode_request(ctx, operation_id, now, body), {})


def decode_message(
    codec: Codec, operation: OperationType, payload: bytes, headers: Mapping[str, str]
) -> tuple[Context, Any]:
    """Return context and value of a received message. FrameError, CodecError: it is no message of this operation."""
    if is_native(headers):
        return _decode_native(codec, operation, payload, headers)
    ctx, _, body = decode_request(payload)
    header, start = codec.decode_header(body)
    if header.name != operation.name:
        raise _of_another(header.name, operation)
    if header.kind is not MessageKind.CALL:
        raise CodecError(f"the message is of kind {header.kind.name}, and a scope publishes CALL")
    return ctx, codec.decode_value(body, start, operation.spec)


def _decode_native(
    codec: Codec, operation: OperationType, payload: bytes, headers: Mapping[str, str]
) -> tuple[Context, Any]:
    if (name := headers.get(OPERATION, "")) != operation.name:
        raise _of_another(name, operation)
    content_type = headers.get(CONTENT_TYPE, codec.content_type)
    if (used := find_codec(content_type)) is None:
        raise CodecError(f"the message is of type {content_type[:80]!r}, which no codec reads")
    return decode_context(headers), used.decode_bare(payload, operation.spec)


def _of_another(name: str, operation: OperationType) -> CodecError:
    return CodecError(f"the message is of operation {name[:80]!r}, not {operation.name!r}")
