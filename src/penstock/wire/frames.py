"""Frames: what a connection carries, both ways.

Rules: a length is checked before a byte of it is kept. A large raw part lies in memory of its own, which is given when
its first read is about to come and all of its size is known and bounded; whoever reads into `buffer` puts it there
without a copy. It is handed out so that pyarrow can lie on it. The caller takes all frames (`next_frame` until None)
after each `receive` or `received`; so the decoder holds one unfinished frame and what one read delivered, and no more.

All numbers little-endian:

    byte  0        4       6        8                12            16
          ┌────────┬───────┬─────────┬────────────────┬────────────┬─────────────┬───────────────┐
          │ u32    │ u16   │ u16     │ u32            │ u32        │ body_bytes  │ the rest      │
          │ frame_ │ api   │ version │ correlation_id │ body_bytes │ body:       │ raw: batches, │
          │ bytes  │       │         │                │            │ MessagePack │ as on disk    │
          └────────┴───────┴─────────┴────────────────┴────────────┴─────────────┴───────────────┘
                   └──────────────────────────── frame_bytes ────────────────────────────────────┘

**Checksums.** TCP's own sum has 16 bits, and memory and network cards err where it does not look; what is wrong in a
request of a broker would stay in the metadata for good. So a frame may carry two CRC-32C between head and body, and
the two highest bits of `api` say that it does:

    byte  0        4              6                    16          20         24
          ┌────────┬──────────────┬────────────────────┬───────────┬──────────┬─ ─ ─ ─ ─┐
          │ frame_ │ api + 0xC000 │ the rest of a head │ u32       │ u32      │ body,   │
          │ bytes  │   (+ 0x2000) │                    │ rest_crc  │ head_crc │ raw     │
          └────────┴──────────────┴────────────────────┴───────────┴──────────┴─ ─ ─ ─ ─┘

`head_crc` is that of the 20 bytes before it, and is checked first: so no length is believed that has changed, and
nobody waits for bytes that are not to come. `rest_crc` is that of the body and, with 0x2000, of the raw part behind
it. A raw part that goes from a file to the socket is not covered: it is batches, each of which has a CRC of its own.
One bit of the two alone is damage: so no single bit that changes makes one kind of frame into the other.
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
CORRELATION_ID_END = 2**32
API_END = 0x2000
_RAW_IS_COVERED = 0x2000
_IS_CHECKED = 0xC000

_OWN_MEMORY_BYTES_MIN = 32 * limits.KIB
"""A raw part from here on is gathered in memory of its own; a smaller one is copied out of what was read."""
_READ_BYTES = 64 * limits.KIB
"""One read that begins with a head: what it brings of a large raw part is copied."""


class Frame(NamedTuple):
    """One frame. `raw` is read-only bytes, or a view that nobody else writes to."""

    api: int
    version: int
    correlation_id: int
    body: bytes
    raw: bytes | memoryview
    is_checked: bool = False  # it had checksums, and they were right


def encode_head(api: int, version: int, correlation_id: int, body: bytes, raw_bytes: int) -> bytes:
    """A frame up to its raw part, which the caller sends behind it: exactly `raw_bytes` bytes."""
    assert 0 <= api < API_END, api
    frame_bytes = FRAME_BYTES_MIN + len(body) + raw_bytes
    return _HEAD.pack(frame_bytes, api, version, correlation_id, len(body)) + body


def encode_checked_head(
    api: int, version: int, correlation_id: int, body: bytes, raw_bytes: int, raw: Iterable[Buffer] | None
) -> bytes:
    """The same with checksums. `raw`: the pieces of the raw part; None: it is not covered."""
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
    """Bytes in, frames out.

    `frame_bytes_max` bounds what follows a frame's length field, `body_bytes_max` its body; both may be raised between
    two frames (after the hello). A refused frame leaves the decoder unusable: it repeats its error for ever.
    `allocate` gives the memory of a large raw part; what it holds at first does not matter.
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
        self._position = 0  # what lies before it is taken
        self._unfinished: Frame | None = None  # its raw part has begun
        self._raw_crc: tuple[int, int] | None = None  # of what came before it, and what all of it must come to
        self._raw: memoryview | None = None  # its own memory, once that is given
        self._raw_bytes = 0
        self._raw_filled_bytes = 0
        self._read_buffer: memoryview | None = None
        self._error: RemoteError | None = None

    @property
    def buffered_bytes(self) -> int:
        """How many bytes wait for the rest of their frame, or to be taken."""
        return len(self._buffer) - self._position + self._raw_filled_bytes

    @property
    def in_frame(self) -> bool:
        """Whether a frame has begun that is not whole: an end of the connection would cut it."""
        return self._unfinished is not None or self.buffered_bytes > 0

    @property
    def missing_bytes(self) -> int | None:
        """How many bytes the frame that has begun still needs; None before its length is known."""
        available = len(self._buffer) - self._position
        if self._unfinished is not None:
            return self._raw_bytes - self._raw_filled_bytes - available
        if available < _LENGTH_BYTES:
            return None
        frame_bytes = int.from_bytes(self._buffer[self._position : self._position + _LENGTH_BYTES], "little")
        return _LENGTH_BYTES + frame_bytes - available

    @property
    def missing_raw_bytes(self) -> int:
        """How many bytes the large raw part that has begun still needs; 0 while none has."""
        return 0 if self._unfinished is None else self.missing_bytes or 0

    def buffer(self) -> memoryview:
        """Where the next read may put its bytes, one at least; then say how many they were (`received`)."""
        if self._unfinished is not None and self._error is None:
            return self._own_memory()[self._raw_filled_bytes :]
        if self._read_buffer is None:
            self._read_buffer = memoryview(bytearray(_READ_BYTES))
        return self._read_buffer

    def received(self, count: int) -> None:
        """The first `count` bytes of what `buffer` gave last are there."""
        if self._unfinished is not None and self._error is None:
            self._raw_filled_bytes += count
            assert self._raw_filled_bytes <= self._raw_bytes
        else:
            assert self._read_buffer is not None
            self.receive(self._read_buffer[:count])

    def receive(self, data: Buffer) -> None:
        """Take what one read delivered; `data` is copied."""
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
        """The next whole frame, or None until more is received. RemoteError if what came cannot be a frame."""
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
                self._check_frame_bytes(frame_bytes)  # first: of nonsense, that says more
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
        """The memory of the raw part that has begun, with all in it that has come."""
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
