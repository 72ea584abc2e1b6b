"""Frames of Frugal with any headers, also wrong ones, written by the description of the format."""

from __future__ import annotations

from collections.abc import Mapping


def encode_frame(headers: Mapping[str, str], message: bytes) -> bytes:
    """Return the frame of headers and a Thrift message; nothing is checked."""
    texts = [text.encode() for pair in headers.items() for text in pair]
    return frame_of(b"".join(len(text).to_bytes(4, "big") + text for text in texts), message)


def frame_of(block: bytes, message: bytes = b"") -> bytes:
    """Return the frame of a block of headers."""
    content = b"".join((b"\0", len(block).to_bytes(4, "big"), block, message))
    return len(content).to_bytes(4, "big") + content
