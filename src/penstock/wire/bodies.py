"""Encode and decode message bodies: check versions and types, tell errors from answers.

Rules: a request that cannot be decoded is refused with `bad_request`, which names the field; one in an unsupported
version with `unsupported_version`, which lists the supported versions. Neither closes the connection, because the
frame itself was intact. The body of every failed response is `{"error": {"code", "message", "details"}}`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import API_OF_REQUEST, APIS, ApiSpec, ApiVersions, ErrorBody, HelloResponse, Request, Response
from penstock.wire.frames import Buffer, Frame, encode_checked_head, encode_head

_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)
_encoder = msgspec.msgpack.Encoder()


class _MaybeError(msgspec.Struct, frozen=True):
    error: ErrorBody | None = None


_maybe_error_decoder = msgspec.msgpack.Decoder(_MaybeError)


@cache
def _decoder(message_type: type[Any]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(message_type)


def encode_request(request: Request, correlation_id: int, *, version: int | None = None, raw_bytes: int = 0) -> bytes:
    """Return the frame of `request` up to its raw part, without checksums. `version` None: the newest."""
    spec = API_OF_REQUEST[type(request)]
    body = _encoder.encode(request)
    return encode_head(spec.api, spec.version_max if version is None else version, correlation_id, body, raw_bytes)


def encode_checked_request(
    request: Request, correlation_id: int, *, version: int | None = None, raw: Buffer = b""
) -> bytes:
    """Return the frame of `request` up to its raw part, with checksums that also cover `raw`."""
    spec = API_OF_REQUEST[type(request)]
    body = _encoder.encode(request)
    spoken = spec.version_max if version is None else version
    return encode_checked_head(spec.api, spoken, correlation_id, body, len(raw), (raw,))


def encode_response_head(api: int, version: int, correlation_id: int, response: Response, raw_bytes: int = 0) -> bytes:
    """Return the frame of `response` up to its raw part; the caller sends that part next, for example from a file."""
    return encode_head(api, version, correlation_id, _encoder.encode(response), raw_bytes)


def encode_answer(
    frame: Frame, answer: Response | RemoteError, raw_bytes: int = 0, raw: Iterable[Buffer] | None = None
) -> bytes:
    """Return the answer to the request `frame` up to its raw part, with checksums if the request had them.

    `raw`: the pieces of the raw part, if all are in memory; None leaves the raw part outside the checksum.
    """
    body = answer_body(answer)
    if not frame.is_checked:
        return encode_head(frame.api, frame.version, frame.correlation_id, body, raw_bytes)
    covered = () if raw_bytes == 0 else raw
    return encode_checked_head(frame.api, frame.version, frame.correlation_id, body, raw_bytes, covered)


def encode_error(api: int, version: int, correlation_id: int, error: RemoteError) -> bytes:
    """Return the complete error response to a request, without checksums."""
    return encode_head(api, version, correlation_id, answer_body(error), 0)


def _error_body(error: RemoteError) -> ErrorBody:
    return ErrorBody(code=error.code, message=error.message, details=error.details)


def encoded_body(request: Request) -> bytes:
    """Return the MessagePack body of `request`."""
    return _encoder.encode(request)


def request_body(request: Request) -> tuple[int, int, bytes]:
    """Return (api number, newest version, body) of `request`, for callers that forward it in a frame of their own."""
    spec = API_OF_REQUEST[type(request)]
    return int(spec.api), spec.version_max, _encoder.encode(request)


def answer_body(response: Response | RemoteError) -> bytes:
    """Return the body of a response or of an error."""
    if isinstance(response, RemoteError):
        return _encoder.encode(_MaybeError(error=_error_body(response)))
    return _encoder.encode(response)


def decode_request(frame: Frame) -> Request:
    """Return the request in `frame`. RemoteError: unsupported_version or bad_request."""
    return decode_request_body(frame.api, frame.version, frame.body)


def decode_request_body(api: int, version: int, body: bytes) -> Request:
    """Decode a request body by api number and version. RemoteError: unsupported_version or bad_request."""
    spec = APIS.get(api)
    if spec is None:
        text = f"request number {api} is not known here; the broker is older"
        raise RemoteError(ErrorCode.UNSUPPORTED_VERSION, text, api=api)
    if not spec.version_min <= version <= spec.version_max:
        name, spoken = spec.api.name.lower(), f"{spec.version_min} to {spec.version_max}"
        raise RemoteError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{name} version {version} is not supported here, only {spoken}",
            api=api,
            version_min=spec.version_min,
            version_max=spec.version_max,
        )
    try:
        request: Request = _decoder(spec.request).decode(body)
    except _MALFORMED as error:
        raise RemoteError(ErrorCode.BAD_REQUEST, f"{spec.api.name.lower()}: {_reason(error)}", api=api) from None
    return request


def decode_response(frame: Frame, request_type: type[Request]) -> Response:
    """Return the response in `frame` to a request of `request_type`.

    RemoteError: the broker's error if it refused the request; bad_frame if this cannot be an answer to that request.
    """
    spec = API_OF_REQUEST[request_type]
    if frame.api != spec.api:
        text = f"the answer to a {spec.api.name.lower()} request is marked as number {frame.api}"
        raise RemoteError(ErrorCode.BAD_FRAME, text)
    return decode_answer_body(frame.body, request_type)


def decode_answer_body(body: bytes, request_type: type[Request]) -> Response:
    """Decode the body of a response to a request of `request_type`. RemoteError as in `decode_response`."""
    spec = API_OF_REQUEST[request_type]
    name = spec.api.name.lower()
    try:
        maybe = _maybe_error_decoder.decode(body)
        if maybe.error is None:
            response: Response = _decoder(spec.response).decode(body)
            return response
    except _MALFORMED as error:
        text = f"the answer to a {name} request cannot be read: {_reason(error)}"
        raise RemoteError(ErrorCode.BAD_FRAME, text) from None
    raise _remote_error(maybe.error)


def refusal_in(body: bytes) -> RemoteError | None:
    """Return the broker's error if `body` is that of an error response, else None."""
    try:
        maybe = _maybe_error_decoder.decode(body)
    except _MALFORMED:
        return None
    return None if maybe.error is None else _remote_error(maybe.error)


def _remote_error(said: ErrorBody) -> RemoteError:
    return RemoteError(said.code, said.message, **_text_keys(said.details))


def request_versions(hello: HelloResponse) -> dict[int, int]:
    """Return the newest version that both sides support, by api number; unsupported requests are left out."""
    return {offered.api: version for offered in hello.api_versions if (version := _shared_version(offered)) is not None}


def _shared_version(offered: ApiVersions) -> int | None:
    spec: ApiSpec | None = APIS.get(offered.api)
    if spec is None:
        return None
    version = min(spec.version_max, offered.version_max)
    return version if version >= max(spec.version_min, offered.version_min) else None


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _text_keys(details: dict[str, Any]) -> dict[str, Any]:
    # Details must not collide with the parameters of RemoteError itself.
    return {name: value for name, value in details.items() if name not in ("self", "code", "message")}
