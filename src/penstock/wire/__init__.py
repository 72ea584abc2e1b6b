"""The socket protocol, without a socket: frames in and out of bytes, messages in and out of frames.

Rules: nothing here reads a clock or a socket. What comes in is hostile until it is decoded: every length is bounded
before memory is given for it, and every refusal is a `RemoteError` that says which part was wrong. After a bad frame
nothing that follows on the connection can be trusted: answer (under correlation id 0), then close.

| module    | what it does                                                     |
|-----------|------------------------------------------------------------------|
| `frames`  | bytes ⇄ `Frame`: head, checksums, MessagePack body, raw part      |
| `bodies`  | `Frame` ⇄ the types of `penstock.messages`, versions and errors    |
| `session` | one connection, as the asking side sees it: requests and answers   |
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
