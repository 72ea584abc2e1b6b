"""Encode a published message's headers and decode its ack. Pure: no NATS connection here.

| option            | encoded as                                                                         |
|-------------------|------------------------------------------------------------------------------------|
| key               | header `Penstock-Key`, or `Penstock-Key-Base64` if a header cannot carry the bytes |
| tombstone (None)  | header `Penstock-Tombstone: 1` and an empty payload                                |
| `stream="orders"` | header `Nats-Expected-Stream: orders`: other streams on the subject do not answer  |
| `ack="leader"`    | header `Penstock-Ack: leader`                                                      |
| `ack="none"`      | header `Penstock-Ack: none` and no reply subject                                   |
| `envelope=…`      | all of these except `stream` are in an envelope; see `envelope_format`             |
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.client import envelope_format
from penstock.client.errors import specific
from penstock.client.values import TOMBSTONE_HEADER, Envelope, PubAck, check_header_name, check_header_value

KEY_HEADER = "Penstock-Key"
KEY_BASE64_HEADER = "Penstock-Key-Base64"
ACK_HEADER = "Penstock-Ack"
EXPECTED_STREAM_HEADER = "Nats-Expected-Stream"
MESSAGE_ID_HEADER = "Nats-Msg-Id"

Acked = Literal["all", "leader"]
Ack = Acked | Literal["none"]
Value = bytes | bytearray | memoryview | str | None

_ERROR_CODES = {
    10054: ErrorCode.TOO_LARGE,
    10097: ErrorCode.TOO_LARGE,
    10077: ErrorCode.STORAGE_FAILED,
    10008: ErrorCode.OVERLOADED,
    10023: ErrorCode.OVERLOADED,
    10109: ErrorCode.READ_ONLY,
}
_BAD_TTL = 10165
_ALLOWED_BY = {
    "per-message TTL is disabled": "--allow-message-ttl yes",
    "rollup not permitted": "--allow-rollup yes",
    "atomic publish is disabled": "--allow-atomic yes",
    "message schedules is disabled": "--allow-rollup yes --allow-message-schedules yes",
}
"""Options of a stream by the refusal that they turn off: that is JetStream's text, which names none."""
_TTL_RULE = "a Nats-TTL is a number of seconds (90), a duration from 1s on (1h30m), or `never`"
_REASONS = frozenset(
    {
        ErrorCode.KEY_ELSEWHERE,
        ErrorCode.KEY_MOVING,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.SCHEMA_MISMATCH,
        ErrorCode.STREAM_FULL,
    }
)  # reasons that are more precise than JetStream's error codes


class _AckError(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _AckBody(msgspec.Struct, gc=False):
    stream: str = ""
    seq: int = 0
    error: _AckError | None = None
    duplicate: bool = False
    offset: int | None = None
    partition: int = 0
    epoch: int | None = None
    replicas: int | None = None
    fsynced: bool | None = None
    reason: str = ""


_ack_decoder = msgspec.json.Decoder(_AckBody)
_acks_decoder = msgspec.json.Decoder(list[_AckBody])


def payload(value: Value) -> bytes:
    """Return the bytes of a value, none for a tombstone. TypeError: neither bytes nor text."""
    return b"" if value is None else _bytes_of("value", value, "bytes or str (such as json.dumps(…)), or None")


def _bytes_of(what: str, given: object, wanted: str) -> bytes:
    if type(given) is bytes:  # before the checks of several types, which are slow
        return given
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    # bytes(5) would be five zero bytes: convert nothing implicitly.
    raise TypeError(f"the {what} is {a_kind(given)}; give {wanted}")


def a_kind(given: object) -> str:
    """Return the type with its article (`an int`, `a dict`), for error messages."""
    name = type(given).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def key_header(key: bytes | str) -> tuple[str, str]:
    """Return (header name, value) for `key`. ValueError: empty or too large. TypeError: neither bytes nor text."""
    raw = _key_bytes(key)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = ""
    if text and text == text.strip() and text.isprintable():
        return KEY_HEADER, text
    return KEY_BASE64_HEADER, base64.b64encode(raw).decode()


def _key_bytes(key: bytes | str) -> bytes:
    raw = _bytes_of("key", key, "bytes or str")
    if not raw:
        raise ValueError("an empty key cannot be published; None means no key")
    if len(raw) > limits.KEY_BYTES_MAX:
        raise ValueError(f"the key has {len(raw)} bytes; the limit is {limits.KEY_BYTES_MAX}")
    return raw


def message_id(headers: Mapping[str, str]) -> str | None:
    """Return the message's deduplication id, or None."""
    return headers.get(MESSAGE_ID_HEADER) or None


def published(
    value: Value,
    key: bytes | str | None,
    headers: Mapping[str, str] | None,
    stream: str | None,
    ack: Ack,
    envelope: Envelope | None,
) -> tuple[Value, dict[str, str] | None]:
    """Return payload and NATS headers of one publish. ValueError or TypeError for values that a header cannot carry."""
    if envelope is None:
        return value, publish_headers(value, key, headers, stream, ack)
    return in_envelope(value, key, headers, stream, ack, envelope)


def in_envelope(
    value: Value,
    key: bytes | str | None,
    headers: Mapping[str, str] | None,
    stream: str | None,
    ack: Ack,
    envelope: Envelope,
) -> tuple[bytes, dict[str, str] | None]:
    """Return payload and NATS headers of one publish in an envelope. ValueError or TypeError as `publish_headers`."""
    envelope_format.check_envelope(envelope)
    publish_headers(value, key, headers, stream, ack)  # for its checks
    raw = None if value is None else payload(value)
    raw_key = None if key is None else _key_bytes(key)
    data = envelope_format.enveloped(raw, raw_key, _own_headers(headers), ack, envelope)
    return data, None if stream is None else {EXPECTED_STREAM_HEADER: stream}


def publish_headers(
    value: Value, key: bytes | str | None, headers: Mapping[str, str] | None, stream: str | None, ack: Ack
) -> dict[str, str] | None:
    """Return all headers of one publish, or None. ValueError or TypeError for values that a header cannot carry."""
    out = _own_headers(headers)
    if key is not None:
        name, text = key_header(key)
        out[name] = text
    if value is None:
        if KEY_HEADER not in out and KEY_BASE64_HEADER not in out:
            raise ValueError('a tombstone says that a key is gone: give key=, or b"" for an empty message')
        out[TOMBSTONE_HEADER] = "1"
    if stream is not None:
        check_header_value(EXPECTED_STREAM_HEADER, stream)
        out[EXPECTED_STREAM_HEADER] = stream
    if ack not in ("all", "leader", "none"):
        raise ValueError(f"ack is {ack!r}; it can be 'all', 'leader' or 'none'")
    if ack != "all":
        out[ACK_HEADER] = ack
    return out or None


def header_block(headers: Mapping[str, str]) -> bytes:
    """Return the NATS header block of checked headers. ValueError: text that UTF-8 cannot encode."""
    block = "NATS/1.0\r\n"
    for name, text in headers.items():
        block += f"{name}: {text}\r\n"
    return f"{block}\r\n".encode()


def sent_message_id(block: bytes | None) -> str | None:
    """Return the message id in a header block that `header_block` has made; None: there is none."""
    _, name, rest = (block or b"").partition(f"\r\n{MESSAGE_ID_HEADER}: ".encode())
    return rest.partition(b"\r\n")[0].decode() if name else None


def _own_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers is {a_kind(headers)}; give a dict of str")
    out: dict[str, str] = {}
    for name, text in headers.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of header {name!r} is {a_kind(name)}; give a str")
        if not isinstance(text, str):
            raise TypeError(f"the header {name!r} is {a_kind(text)}; give a str")
        check_header_name(name)
        check_header_value(name, text)
        out[name] = text
    return out


def parse_ack(data: bytes) -> PubAck:
    """Return the ack in a reply. RemoteError: an error, or not an ack."""
    if data.startswith(envelope_format.COOKIE):
        return _enveloped_ack(data)
    return _plain_ack(data)


def _plain_ack(data: bytes) -> PubAck:
    try:
        body = _ack_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _no_ack() from None
    if body.error is not None:
        raise _refusal(body, body.error)
    if not body.stream or body.seq < 1:
        raise _no_ack()
    return _ack_of(body)


def parse_acks(bodies: Sequence[bytes]) -> list[PubAck] | None:
    """Return the acks in replies, each `{…}` without braces inside; None: `parse_ack` must judge each by itself."""
    # Each reply has one opening brace, so as many objects as replies means that each reply is an object of its own.
    try:
        found = _acks_decoder.decode(b"[%b]" % b",".join(bodies))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    acks = [_ack_of(body) for body in found if body.stream and body.seq > 0 and body.error is None]
    return acks if len(acks) == len(found) == len(bodies) else None


def _ack_of(body: _AckBody) -> PubAck:
    return PubAck(
        body.stream,
        body.seq - 1 if body.offset is None else body.offset,
        body.partition,
        body.duplicate,
        body.epoch,
        body.replicas,
        body.fsynced,
    )


def _refusal(body: _AckBody, error: _AckError) -> RemoteError:
    code = _ERROR_CODES.get(error.err_code, f"nats_{error.err_code}")
    code = body.reason if body.reason in _REASONS else code
    message = error.description or f"error {error.err_code}"
    if (options := _ALLOWED_BY.get(message)) is not None:
        name = body.stream or "NAME"
        message += f"; `penstock stream alter {name} {options}` lets the stream accept such messages"
    if error.err_code == _BAD_TTL:
        message += f": {_TTL_RULE}"
    return specific(RemoteError(code, message, stream=body.stream, err_code=error.err_code))


def _enveloped_ack(data: bytes) -> PubAck:
    try:
        found: Any = envelope_format.ack_in(data)
    except ImportError:  # anybody can send an envelope, also to a client that publishes without
        raise _no_ack() from None
    if found is None or not found.stream:
        raise _no_ack()
    if found.error_body:
        return _plain_ack(found.error_body)  # not `parse_ack`: envelopes may be nested without end
    if found.ack_error:  # Liftbridge gives no more detail
        name = envelope_format.ERRORS.get(found.ack_error, str(found.ack_error)).lower()
        code = ErrorCode.TOO_LARGE if name == "too_large" else f"envelope_{name}"
        raise specific(RemoteError(code, f"the message was refused: {name}", stream=found.stream))
    is_ours = found.got_leader_epoch > 0
    return PubAck(
        stream=found.stream,
        offset=found.offset,
        partition=found.got_partition,
        leader_epoch=found.got_leader_epoch if is_ours else None,
        replicas=found.got_replicas if is_ours else None,
        fsynced=found.got_fsynced if is_ours else None,
        correlation_id=found.correlation_id,
    )


def _no_ack() -> RemoteError:
    text = "the reply is no ack of a stream; another service answers on this subject"
    return RemoteError(ErrorCode.BAD_REQUEST, text)
