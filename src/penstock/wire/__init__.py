"""The socket protocol without sockets (sans-IO): bytes ⇄ frames ⇄ typed messages.

Rules: nothing here reads a clock or a socket. Input is untrusted until it is decoded: every length is bounded before
memory is allocated for it, and every refusal is a `RemoteError` that names the invalid part. After a bad frame nothing
that follows on the connection can be trusted: answer it (with correlation id 0), then close the connection.

| module       | what it does                                                           |
|--------------|------------------------------------------------------------------------|
| `frames`     | bytes ⇄ `Frame`: head, checksums, MessagePack body, raw part           |
| `bodies`     | `Frame` ⇄ the types of `penstock.messages`, versions and errors        |
| `encryption` | encrypted frames between brokers                                       |
| `session`    | one connection from the requester's side: requests, answers, deadlines |
"""

from __future__ import annotations

from penstock.wire.bodies import (
    decode_request,
    decode_response,
    encode_answer,
    encode_checked_request,
    encode_error,
    encode_request,
    encode_response_head,
    request_versions,
)
from penstock.wire.frames import HEAD_BYTES, Frame, FrameDecoder, encode_checked_head, encode_head

__all__ = [
    "HEAD_BYTES",
    "Frame",
    "FrameDecoder",
    "decode_request",
    "decode_response",
    "encode_answer",
    "encode_checked_head",
    "encode_checked_request",
    "encode_error",
    "encode_head",
    "encode_request",
    "encode_response_head",
    "request_versions",
]
