"""Answers of JetStream's API as bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

STATUS_CHARS_MAX = 200
_NO_TEXT = re.compile(r"[^\x20-\x7e]+")
_TYPE = "io.nats.jetstream.api.v1."
_encode = msgspec.json.Encoder().encode
_EMPTY_PAGE = {"total": 0, "offset": 0, "limit": 0}
_BESIDE_ERRORS: dict[str, dict[str, Any]] = {
    "STREAM.INFO": _EMPTY_PAGE,
    "STREAM.NAMES": {**_EMPTY_PAGE, "streams": None},
    "STREAM.LIST": {**_EMPTY_PAGE, "streams": []},
    "STREAM.PURGE": {"purged": 0},
}
"""Fields that nats-server never leaves out."""


def publish_command(reply: bytes, payload: bytes, headers: bytes | None = None) -> bytes:
    """Return the PUB or HPUB command for an answer; `headers` is a whole header block."""
    if headers is None:
        return b"PUB %b %d\r\n%b\r\n" % (reply, len(payload), payload)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (reply, len(headers), len(headers) + len(payload), headers, payload)


def answer_headers(fields: Mapping[str, str]) -> bytes:
    """Return a header block."""
    return b"NATS/1.0\r\n%b\r\n" % b"".join(f"{name}: {value}\r\n".encode() for name, value in fields.items())


def status(code: int, text: str) -> bytes:
    """Return the header block of a status message."""
    return b"NATS/1.0 %d %b\r\n\r\n" % (code, _NO_TEXT.sub(" ", text)[:STATUS_CHARS_MAX].encode())


def answer_type(operation: str) -> str:
    """Return the type of an operation's answers, such as `io.nats.jetstream.api.v1.stream_info_response`."""
    name = {"INFO": "account_info", "CONSUMER.DURABLE.CREATE": "consumer_create"}.get(operation)
    return f"{_TYPE}{name or operation.replace('.', '_').lower()}_response"


def error_answer(operation: str, code: int, err_code: int, description: str) -> bytes:
    """Return the JSON of a refusal."""
    error = {"code": code, "err_code": err_code, "description": description}
    return _encode({"type": answer_type(operation), "error": error, **_BESIDE_ERRORS.get(operation, {})})


def json_answer(operation: str, **fields: Any) -> bytes:
    """Return the JSON of an answer."""
    return _encode({"type": answer_type(operation), **fields})
