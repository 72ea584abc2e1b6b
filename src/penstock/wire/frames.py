"""Frames: what a connection carries, both ways.

Rules: a length is checked before a byte of it is kept. A frame's raw part is copied once at most, and handed out so
that pyarrow can lie on it. The caller takes all frames (`next_frame` until None) after each `receive`; so the decoder
holds one unfinished frame and what one read delivered, and no more.

All numbers little-endian:

    byte  0        4       6        8                12            16
          ┌────────┬───────┬─────────┬────────────────┬────────────┬─────────────┬───────────────┐
          │ u32    │ u16   │ u16     │ u32            │ u32        │ body_bytes  │ the rest      │
          │ frame_ │ api   │ version │ correlation_id │ body_bytes │ body:       │ raw: batches, │
          │ bytes  │       │         │                │            │ MessagePack │ as on disk    │
          └────────┴───────┴─────────┴────────────────┴────────────┴─────────────┴───────────────┘
                   └──────────────────────────── frame_bytes ────────────────────────────────────┘
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError

Buffer = bytes | bytearray | memoryview

_HEAD = struct.Struct("<IHHII")
HEAD_BYTES = _HEAD.size
_LENGTH_BYTES = 4
FRAME_BYTES_MIN = HEAD_BYTES - _LENGTH_BYTES
CORRELATION_ID_END = 2**32

_OWN_MEMORY_BYTES_MIN = 32 * limits.KIB
"""A raw part from here on is gathered in memory of its own; a smaller one is copied out of what was read."""


class Frame(NamedTuple):
    """One frame. `raw` is read-only bytes, or a view that nobody else writes to."""

    api: int
    version: int
    correlation_id: int
    body: bytes
    raw: bytes | memoryview


def encode_head(api: int, version: int, correlation_id: int, body: bytes, raw_bytes: int) -> bytes:
    """A frame up to its raw part, which the caller sends behind it: exactly `raw_bytes` bytes."""
    frame_bytes = FRAME_BYTES_MIN + len(body) + raw_bytes
    return _HEAD.pack(frame_bytes, api, version, correlation_id, len(body)) + body


class FrameDecoder:
    """Bytes in, frames out.

    `frame_bytes_max` bounds what follows a frame's length field, `body_bytes_max` its body; both may be raised between
    two frames (after the hello). A refused frame leaves the decoder unusable: it repeats its error for ever.
    """

    def __init__(self, frame_bytes_max: int, body_bytes_max: int | None = None) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.body_bytes_max = frame_bytes_max if body_bytes_max is None else body_bytes_max
        self._buffer = bytearray()
        self._position = 0  # what lies before it is taken
        self._unfinished: Frame | None = None  # its raw part grows in _raw
        self._raw = bytearray()
        self._raw_missing_bytes = 0
        self._error: RemoteError | None = None

    @property
    def buffered_bytes(self) -> int:
        """How many bytes wait for the rest of their frame, or to be taken."""
        return len(self._buffer) - self._position + len(self._raw)

    @property
    def in_frame(self) -> bool:
        """Whether a frame has begun that is not whole: an end of the connection would cut it."""
        return self._unfinished is not None or self.buffered_bytes > 0

    @property
    def missing_bytes(self) -> int | None:
        """How many bytes the frame that has begun still needs; None before its length is known."""
        if self._unfinished is not None:
            return self._raw_missing_bytes - (len(self._buffer) - self._position)
        available = len(self._buffer) - self._position
        if available < _LENGTH_BYTES:
            return None
        frame_bytes = int.from_bytes(self._buffer[self._position : self._position + _LENGTH_BYTES], "little")
        return _LENGTH_BYTES + frame_bytes - available

    def receive(self, data: Buffer) -> None:
        """Take what one read delivered; `data` is copied."""
        if self._error is not None:
            return
        if self._unfinished is not None and self._position == len(self._buffer):
            taken = memoryview(data)[: self._raw_missing_bytes]
            self._raw += taken
            self._raw_missing_bytes -= len(taken)
            data = memoryview(data)[len(taken) :]
        if self._position:
            del self._buffer[: self._position]
            self._position = 0
        self._buffer += data

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None until more is received. RemoteError if what came cannot be a frame."""
        if self._error is not None:
            raise self._error
        if self._unfinished is not None:
            return self._continue_raw()
        available = len(self._buffer) - self._position
        if available < HEAD_BYTES:
            if available >= _LENGTH_BYTES:
                self._check_frame_bytes(int.from_bytes(self._buffer[self._position : self._position + 4], "little"))
            return None
        frame_bytes, api, version, correlation_id, body_bytes = _HEAD.unpack_from(self._buffer, self._position)
        self._check_frame_bytes(frame_bytes)
        self._check_body_bytes(body_bytes, frame_bytes)
        raw_bytes = frame_bytes - FRAME_BYTES_MIN - body_bytes
        own_memory = raw_bytes >= _OWN_MEMORY_BYTES_MIN
        if available < HEAD_BYTES + body_bytes + (0 if own_memory else raw_bytes):
            return None
        body_start = self._position + HEAD_BYTES
        raw_start = body_start + body_bytes
        body = bytes(memoryview(self._buffer)[body_start:raw_start])
        if own_memory:
            self._position = raw_start
            self._unfinished = Frame(api, version, correlation_id, body, b"")
            self._raw_missing_bytes = raw_bytes
            return self._continue_raw()
        self._position = raw_start + raw_bytes
        return Frame(api, version, correlation_id, body, bytes(memoryview(self._buffer)[raw_start : self._position]))

    def _continue_raw(self) -> Frame | None:
        assert self._unfinished is not None
        if self._raw_missing_bytes:
            with memoryview(self._buffer) as view:
                taken = view[self._position : self._position + self._raw_missing_bytes]
                self._raw += taken
                self._position += len(taken)
                self._raw_missing_bytes -= len(taken)
                taken.release()
        if self._raw_missing_bytes:
            return None
        frame = self._unfinished._replace(raw=memoryview(self._raw).toreadonly())
        self._unfinished = None
        self._raw = bytearray()
        return frame

    def _check_frame_bytes(self, frame_bytes: int) -> None:
        if frame_bytes < FRAME_BYTES_MIN:
            self._refuse(ErrorCode.BAD_FRAME, f"a frame of {frame_bytes} bytes is shorter than its head", frame_bytes)
        if frame_bytes > self.frame_bytes_max:
            self._refuse(
                ErrorCode.TOO_LARGE,
                f"a frame of {frame_bytes} bytes is over the limit of {self.frame_bytes_max} bytes here",
                frame_bytes,
            )

    def _check_body_bytes(self, body_bytes: int, frame_bytes: int) -> None:
        if body_bytes > frame_bytes - FRAME_BYTES_MIN:
            text = f"a body of {body_bytes} bytes does not fit its frame of {frame_bytes} bytes"
            self._refuse(ErrorCode.BAD_FRAME, text, frame_bytes)
        if body_bytes > self.body_bytes_max:
            text = f"a body of {body_bytes} bytes is over the limit of {self.body_bytes_max} bytes here"
            self._refuse(ErrorCode.TOO_LARGE, text, frame_bytes)

    def _refuse(self, code: ErrorCode, message: str, frame_bytes: int) -> None:
        self._error = RemoteError(code, message, frame_bytes=frame_bytes, frame_bytes_max=self.frame_bytes_max)
        self._buffer = bytearray()
        self._position = 0
        raise self._error
