"""Frames: the unit that a connection carries in both directions.

Rules: a length is checked before any of its bytes are stored. A large raw part gets memory of its own, allocated just
before its first read, once its size is known and bounded; a reader that fills `buffer` puts the bytes there without a
copy, and pyarrow can use that memory directly. After each `receive` or `received` the caller takes all frames
(`next_frame` until None), so the decoder holds at most one unfinished frame and the bytes of one read.

All numbers little-endian:

    byte  0        4       6        8                12            16
          ┌────────┬───────┬─────────┬────────────────┬────────────┬─────────────┬───────────────┐
          │ u32    │ u16   │ u16     │ u32            │ u32        │ body_bytes  │ the rest      │
          │ frame_ │ api   │ version │ correlation_id │ body_bytes │ body:       │ raw: batches, │
          │ bytes  │       │         │                │            │ MessagePack │ as on disk    │
          └────────┴───────┴─────────┴────────────────┴────────────┴─────────────┴───────────────┘
                   └──────────────────────────── frame_bytes ────────────────────────────────────┘

**Checksums.** TCP's checksum has 16 bits and does not cover memory and network cards; a corrupted request from a broker
would stay in the metadata for good. So a frame may carry two CRC-32C between head and body, announced by the two
highest bits of `api`:

    byte  0        4              6                    16          20         24
          ┌────────┬──────────────┬────────────────────┬───────────┬──────────┬─ ─ ─ ─ ─┐
          │ frame_ │ api + 0xC000 │ the rest of a head │ u32       │ u32      │ body,   │
          │ bytes  │   (+ 0x2000) │                    │ rest_crc  │ head_crc │ raw     │
          └────────┴──────────────┴────────────────────┴───────────┴──────────┴─ ─ ─ ─ ─┘

`head_crc` covers the 20 bytes before it and is checked first, so a corrupted length is never trusted and the receiver
never waits for bytes that will not come. `rest_crc` covers the body and, with 0x2000, the raw part. A raw part sent
from a file is not covered: it consists of batches, each of which has its own CRC. Only one of the two bits set means
corruption, so no single flipped bit turns one kind of frame into the other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.hot.crc import crc32c

Buffer = bytes | bytearray | memoryview

_HEAD = struct.Struct("<IHHII")
_CRC = struct.Struct("<I")
HEAD_BYTES = _HEAD.size
CHECKED_HEAD_BYTES = HEAD_BYTES + 2 * _CRC.size
_LENGTH_BYTES = 4
FRAME_BYTES_MIN = HEAD_BYTES - _LENGTH_BYTES
API_END = 0x2000
_RAW_IS_COVERED = 0x2000
_IS_CHECKED = 0xC000

_OWN_MEMORY_BYTES_MIN = 32 * limits.KIB
"""Raw parts of at least this size get memory of their own; smaller ones are copied from the read buffer."""
_READ_BYTES = 64 * limits.KIB
"""Size of a read that starts at a head; the bytes of a large raw part that it contains are copied."""


class Frame(NamedTuple):
    """One frame. `raw` is read-only: bytes, or a view of memory that is not written again."""

    api: int
    version: int
    correlation_id: int
    body: bytes
    raw: bytes | memoryview
    is_checked: bool = False  # it had checksums, and they matched


def encode_head(api: int, version: int, correlation_id: int, body: bytes, raw_bytes: int) -> bytes:
    """Return a frame up to its raw part; the caller sends exactly `raw_bytes` bytes after it."""
    assert 0 <= api < API_END, api
    frame_bytes = FRAME_BYTES_MIN + len(body) + raw_bytes
    return _HEAD.pack(frame_bytes, api, version, correlation_id, len(body)) + body


def encode_checked_head(
    api: int, version: int, correlation_id: int, body: bytes, raw_bytes: int, raw: Iterable[Buffer] | None
) -> bytes:
    """Return a frame with checksums up to its raw part. `raw`: the pieces of the raw part; None: not covered."""
    assert 0 <= api < API_END, api
    crc = crc32c(body)
    marks = _IS_CHECKED
    if raw is not None:
        marks |= _RAW_IS_COVERED
        for piece in raw:
            crc = crc32c(piece, crc)
    frame_bytes = CHECKED_HEAD_BYTES - _LENGTH_BYTES + len(body) + raw_bytes
    head = _HEAD.pack(frame_bytes, api | marks, version, correlation_id, len(body)) + _CRC.pack(crc)
    return b"".join((head, _CRC.pack(crc32c(head)), body))


class FrameDecoder:
    """Decodes received bytes into frames.

    `frame_bytes_max` bounds the bytes after a frame's length field, `body_bytes_max` its body; both may be raised
    between two frames (after the hello). After a refused frame the decoder is unusable and raises the same error again.
    `allocate` returns memory for a large raw part; its initial contents do not matter.
    """

    def __init__(
        self,
        frame_bytes_max: int,
        body_bytes_max: int | None = None,
        *,
        allocate: Callable[[int], bytearray | memoryview] = bytearray,
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.body_bytes_max = frame_bytes_max if body_bytes_max is None else body_bytes_max
        self._allocate = allocate
        self._buffer = bytearray()
        self._position = 0  # bytes before it are consumed
        self._unfinished: Frame | None = None  # a frame whose raw part is incomplete
        self._raw_crc: tuple[int, int] | None = None  # (CRC of the bytes so far, expected CRC of all)
        self._raw: memoryview | None = None  # the memory of its raw part, once allocated
        self._raw_bytes = 0
        self._raw_filled_bytes = 0
        self._read_buffer: memoryview | None = None
        self._error: RemoteError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait for the rest of their frame, or to be taken."""
        return len(self._buffer) - self._position + self._raw_filled_bytes

    @property
    def in_frame(self) -> bool:
        """True if a frame is incomplete; closing the connection now would cut it off."""
        return self._unfinished is not None or self.buffered_bytes > 0

    @property
    def missing_bytes(self) -> int | None:
        """Bytes that the incomplete frame still needs; None before its length is known."""
        available = len(self._buffer) - self._position
        if self._unfinished is not None:
            return self._raw_bytes - self._raw_filled_bytes - available
        if available < _LENGTH_BYTES:
            return None
        frame_bytes = int.from_bytes(self._buffer[self._position : self._position + _LENGTH_BYTES], "little")
        return _LENGTH_BYTES + frame_bytes - available

    @property
    def missing_raw_bytes(self) -> int:
        """Bytes that the incomplete large raw part still needs; 0 if there is none."""
        return 0 if self._unfinished is None else self.missing_bytes or 0

    def buffer(self) -> memoryview:
        """Return writable memory for the next read, at least one byte; report the bytes read with `received`."""
        if self._unfinished is not None and self._error is None:
            return self._own_memory()[self._raw_filled_bytes :]
        if self._read_buffer is None:
            self._read_buffer = memoryview(bytearray(_READ_BYTES))
        return self._read_buffer

    def received(self, count: int) -> None:
        """Record that the first `count` bytes of the last `buffer` are filled."""
        if self._unfinished is not None and self._error is None:
            self._raw_filled_bytes += count
            assert self._raw_filled_bytes <= self._raw_bytes
        else:
            assert self._read_buffer is not None
            self.receive(self._read_buffer[:count])

    def receive(self, data: Buffer) -> None:
        """Take the bytes of one read; `data` is copied."""
        if self._error is not None:
            return
        if self._unfinished is not None:
            raw = self._own_memory()
            taken = memoryview(data)[: self._raw_bytes - self._raw_filled_bytes]
            raw[self._raw_filled_bytes : self._raw_filled_bytes + len(taken)] = taken
            self._raw_filled_bytes += len(taken)
            data = memoryview(data)[len(taken) :]
        if self._position:
            del self._buffer[: self._position]
            self._position = 0
        self._buffer += data

    def next_frame(self) -> Frame | None:
        """Return the next complete frame, or None until more is received. RemoteError if the bytes are not a frame."""
        if self._error is not None:
            raise self._error
        if self._unfinished is not None:
            return self._finished()
        available = len(self._buffer) - self._position
        if available < HEAD_BYTES:
            if available >= _LENGTH_BYTES:
                self._check_frame_bytes(int.from_bytes(self._buffer[self._position : self._position + 4], "little"))
            return None
        frame_bytes, api, version, correlation_id, body_bytes = _HEAD.unpack_from(self._buffer, self._position)
        head_bytes = HEAD_BYTES
        if marks := api & _IS_CHECKED:
            head_bytes = CHECKED_HEAD_BYTES
            if marks != _IS_CHECKED:
                self._check_frame_bytes(frame_bytes)  # first: for garbage bytes this error is more useful
                self._refuse_damage("one of the two bits that mark a frame with checksums is set")
            if available < head_bytes:
                self._check_frame_bytes(frame_bytes, CHECKED_HEAD_BYTES - _LENGTH_BYTES)
                return None
            self._check_head()
        self._check_frame_bytes(frame_bytes)
        rest_bytes = frame_bytes + _LENGTH_BYTES - head_bytes
        self._check_body_bytes(body_bytes, rest_bytes, frame_bytes)
        raw_bytes = rest_bytes - body_bytes
        own_memory = raw_bytes >= _OWN_MEMORY_BYTES_MIN
        if available < head_bytes + body_bytes + (0 if own_memory else raw_bytes):
            return None
        body_start = self._position + head_bytes
        raw_start = body_start + body_bytes
        body = bytes(memoryview(self._buffer)[body_start:raw_start])
        raw_crc = None
        if marks:
            expected = _CRC.unpack_from(self._buffer, self._position + HEAD_BYTES)[0]
            raw_crc = (crc32c(body), expected)
            if not api & _RAW_IS_COVERED:
                self._check_rest(*raw_crc)
                raw_crc = None
            api &= ~(_IS_CHECKED | _RAW_IS_COVERED)
        frame = Frame(api, version, correlation_id, body, b"", bool(marks))
        if own_memory:
            self._position = raw_start
            self._unfinished = frame
            self._raw_crc = raw_crc
            self._raw_bytes = raw_bytes
            return self._finished()
        self._position = raw_start + raw_bytes
        raw = bytes(memoryview(self._buffer)[raw_start : self._position])
        if raw_crc is not None:
            self._check_rest(crc32c(raw, raw_crc[0]), raw_crc[1])
        return frame._replace(raw=raw)

    def _own_memory(self) -> memoryview:
        """Return the memory of the incomplete raw part, including all of its bytes received so far."""
        if self._raw is None:
            self._raw = memoryview(self._allocate(self._raw_bytes)).cast("B")
            with memoryview(self._buffer) as view:
                taken = view[self._position : self._position + self._raw_bytes]
                self._raw[: len(taken)] = taken
                self._position += len(taken)
                self._raw_filled_bytes = len(taken)
                taken.release()
        return self._raw

    def _finished(self) -> Frame | None:
        assert self._unfinished is not None
        if self._raw_filled_bytes + len(self._buffer) - self._position < self._raw_bytes:
            return None
        frame = self._unfinished._replace(raw=self._own_memory().toreadonly())
        self._unfinished = self._raw = None
        raw_crc, self._raw_crc = self._raw_crc, None
        if raw_crc is not None:
            self._check_rest(crc32c(frame.raw, raw_crc[0]), raw_crc[1])
        self._raw_bytes = self._raw_filled_bytes = 0
        return frame

    def _check_head(self) -> None:
        with memoryview(self._buffer) as view:
            end = self._position + CHECKED_HEAD_BYTES
            expected = _CRC.unpack_from(view, end - _CRC.size)[0]
            found = crc32c(view[self._position : end - _CRC.size])
        if found != expected:
            self._refuse_damage(f"the checksum of its head is {expected:08x}, its bytes come to {found:08x}")

    def _check_rest(self, found: int, expected: int) -> None:
        if found != expected:
            self._refuse_damage(f"its checksum is {expected:08x}, its bytes come to {found:08x}")

    def _check_frame_bytes(self, frame_bytes: int, frame_bytes_min: int = FRAME_BYTES_MIN) -> None:
        if frame_bytes < frame_bytes_min:
            self._refuse(ErrorCode.BAD_FRAME, f"a frame of {frame_bytes} bytes is shorter than its head", frame_bytes)
        if frame_bytes > self.frame_bytes_max:
            self._refuse(
                ErrorCode.TOO_LARGE,
                f"a frame of {frame_bytes} bytes is over the limit of {self.frame_bytes_max} bytes here",
                frame_bytes,
            )

    def _check_body_bytes(self, body_bytes: int, rest_bytes: int, frame_bytes: int) -> None:
        if body_bytes > rest_bytes:
            text = f"a body of {body_bytes} bytes does not fit its frame of {frame_bytes} bytes"
            self._refuse(ErrorCode.BAD_FRAME, text, frame_bytes)
        if body_bytes > self.body_bytes_max:
            text = f"a body of {body_bytes} bytes is over the limit of {self.body_bytes_max} bytes here"
            self._refuse(ErrorCode.TOO_LARGE, text, frame_bytes)

    def _refuse_damage(self, what: str) -> None:
        self._fail(RemoteError(ErrorCode.DAMAGED_FRAME, f"a frame was damaged on its way: {what}"))

    def _refuse(self, code: ErrorCode, message: str, frame_bytes: int) -> None:
        self._fail(RemoteError(code, message, frame_bytes=frame_bytes, frame_bytes_max=self.frame_bytes_max))

    def _fail(self, error: RemoteError) -> None:
        self._error = error
        self._unfinished = self._raw = None
        self._raw_bytes = self._raw_filled_bytes = 0
        self._buffer = bytearray()
        self._position = 0
        raise error
