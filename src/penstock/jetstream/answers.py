"""Answers of JetStream's API as bytes."""

from __future__ import annotations

from typing import Any

import msgspec

_TYPE = "io.nats.jetstream.api.v1."
_encode = msgspec.json.Encoder().encode


def publish_command(reply: bytes, payload: bytes, headers: bytes | None = None) -> bytes:
    """Return the PUB or HPUB command for an answer; `headers` is a whole header block."""
    if headers is None:
        return b"PUB %b %d\r\n%b\r\n" % (reply, len(payload), payload)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (reply, len(headers), len(headers) + len(payload), headers, payload)


def answer_type(operation: str) -> str:
    """Return the type of an operation's answers, such as `io.nats.jetstream.api.v1.stream_info_response`."""
    name = {"INFO": "account_info", "CONSUMER.DURABLE.CREATE": "consumer_create"}.get(operation)
    return f"{_TYPE}{name or operation.replace('.', '_').lower()}_response"


def error_answer(operation: str, code: int, err_code: int, description: str) -> bytes:
    """Return the JSON of a refusal."""
    error = {"code": code, "err_code": err_code, "description": description}
    return _encode({"type": answer_type(operation), "error": error})


def json_answer(operation: str, **fields: Any) -> bytes:
    """Return the JSON of an answer."""
    return _encode({"type": answer_type(operation), **fields})
