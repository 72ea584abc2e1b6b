"""Messages in and out of frames: versions checked, types checked, errors told apart from answers.

Rules: a request that cannot be read is `bad_request` and names the field; one of a version that is not spoken here is
`unsupported_version` and says which are. Neither harms the connection: the frame around it was whole.
The body of a failed response is `{"error": {"code", "message", "details"}}`, whatever the request was.
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
    """The frame of `request` up to its raw part, without checksums; in the newest version or that one."""
    spec = API_OF_REQUEST[type(request)]
    body = _encoder.encode(request)
    return encode_head(spec.api, spec.version_max if version is None else version, correlation_id, body, raw_bytes)


def encode_checked_request(
    request: Request, correlation_id: int, *, version: int | None = None, raw: Buffer = b""
) -> bytes:
    """The same with checksums, which cover its raw part."""
    spec = API_OF_REQUEST[type(request)]
    body = _encoder.encode(request)
    spoken = spec.version_max if version is None else version
    return encode_checked_head(spec.api, spoken, correlation_id, body, len(raw), (raw,))


def encode_response_head(api: int, version: int, correlation_id: int, response: Response, raw_bytes: int = 0) -> bytes:
    """The frame of `response` up to its raw part, which the caller sends behind it (from a file, perhaps)."""
    return encode_head(api, version, correlation_id, _encoder.encode(response), raw_bytes)


def encode_answer(
    frame: Frame, answer: Response | RemoteError, raw_bytes: int = 0, raw: Iterable[Buffer] | None = None
) -> bytes:
    """The frame that answers that one, up to its raw part; with checksums if that one had them.

    `raw`: the pieces of the raw part, where all of them are at hand; None leaves it uncovered.
    """
    body = answer_body(answer)
    if not frame.is_checked:
        return encode_head(frame.api, frame.version, frame.correlation_id, body, raw_bytes)
    covered = () if raw_bytes == 0 else raw
    return encode_checked_head(frame.api, frame.version, frame.correlation_id, body, raw_bytes, covered)


def encode_error(api: int, version: int, correlation_id: int, error: RemoteError) -> bytes:
    """The whole frame that answers a request with `error`, without checksums."""
    return encode_head(api, version, correlation_id, answer_body(error), 0)


def _error_body(error: RemoteError) -> ErrorBody:
    return ErrorBody(code=error.code, message=error.message, details=error.details)


def encoded_body(request: Request) -> bytes:
    """The body of `request`."""
    return _encoder.encode(request)


def request_body(request: Request) -> tuple[int, int, bytes]:
    """Number, version and body of `request`, for who passes them on in a frame of his own."""
    spec = API_OF_REQUEST[type(request)]
    return int(spec.api), spec.version_max, _encoder.encode(request)


def answer_body(response: Response | RemoteError) -> bytes:
    """The body of an answer, or of a refusal, for the same."""
    if isinstance(response, RemoteError):
        return _encoder.encode(_MaybeError(error=_error_body(response)))
    return _encoder.encode(response)


def decode_request(frame: Frame) -> Request:
    """The request in `frame`. RemoteError: unsupported_version or bad_request."""
    return decode_request_body(frame.api, frame.version, frame.body)


def decode_request_body(api: int, version: int, body: bytes) -> Request:
    """The request with that number and version. RemoteError: unsupported_version or bad_request."""
    spec = APIS.get(api)
    if spec is None:
        text = f"request number {api} is not known here; the broker is older"
        raise RemoteError(ErrorCode.UNSUPPORTED_VERSION, text, api=api)
    if not spec.version_min <= version <= spec.version_max:
        name, spoken = spec.api.name.lower(), f"{spec.version_min} to {spec.version_max}"
        raise RemoteError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{name} version {version} is not spoken here, only {spoken}",
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
    """The answer in `frame` to a request of that type.

    RemoteError: the broker's own, if it refused; bad_frame if this cannot be an answer to that request.
    """
    spec = API_OF_REQUEST[request_type]
    if frame.api != spec.api:
        text = f"the answer to a {spec.api.name.lower()} request is marked as number {frame.api}"
        raise RemoteError(ErrorCode.BAD_FRAME, text)
    return decode_answer_body(frame.body, request_type)


def decode_answer_body(body: bytes, request_type: type[Request]) -> Response:
    """The answer in `body` to a request of that type. RemoteError as `decode_response`."""
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
    """What a broker says in the body of a refusal; None if it is none."""
    try:
        maybe = _maybe_error_decoder.decode(body)
    except _MALFORMED:
        return None
    return None if maybe.error is None else _remote_error(maybe.error)


def _remote_error(said: ErrorBody) -> RemoteError:
    return RemoteError(said.code, said.message, **_text_keys(said.details))


def request_versions(hello: HelloResponse) -> dict[int, int]:
    """By request number: the newest version that both sides speak; a request that is missing cannot be made."""
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
    # Names that RemoteError takes itself cannot come in as details.
    return {name: value for name, value in details.items() if name not in ("self", "code", "message")}
