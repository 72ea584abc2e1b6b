"""Frames of Frugal as they are nearly always: written and read in one step, without a dict of their headers.

    u32 size, u8 version 0, u32 size of headers, u32 size, name, u32 size, value, …, message     numbers big-endian

Rules: a decoder reads no byte beyond the end, and says None of a frame that is wrong or unusual: what it means then, or
which byte is wrong, `penstock.frugal.frames` finds out. Of two headers of one name the last one counts.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from penstock.hot import cython

from penstock.hot import memory

_CORRELATION_ID = b"_cid"
_OPERATION_ID = b"_opid"
_TIMEOUT = b"_timeout"
_HEAD_BYTES = 9
_BLOCK_BYTES_MAX = 2048  # so it has 256 headers at most
_OPERATION_ID_DIGITS_MAX = 18
_TIMEOUT_DIGITS_MAX = 9
NONE = -1

_int = int  # of C, when compiled


def write_frame(
    correlation_id: str, operation_id: _int, timeout_ms: _int, others: dict[str, str] | None, message: bytes
) -> bytes:
    """Return the frame of a message; `timeout_ms`: `NONE` for an answer. UnicodeEncodeError: a text has no UTF-8.

    Its size is that of the bytes modulo 2**32: the caller checks it.
    """
    cid = correlation_id.encode("utf-8")
    more = _block_of(others) if others else b""
    if not cython.compiled:
        own = {_CORRELATION_ID: cid, _OPERATION_ID: b"%d" % operation_id}
        if timeout_ms != NONE:
            own[_TIMEOUT] = b"%d" % timeout_ms
        block = b"".join([part for pair in own.items() for text in pair for part in (_size(len(text)), text)]) + more
        return b"".join((_size(5 + len(block) + len(message)), b"\0", _size(len(block)), block, message))
    digits = memory.decimal_digits(operation_id)
    timeout_digits = 0 if timeout_ms == NONE else memory.decimal_digits(timeout_ms)
    block_bytes = 25 + len(cid) + digits + len(more)
    if timeout_digits:
        block_bytes += 16 + timeout_digits
    frame = memory.new_text(_HEAD_BYTES + block_bytes + len(message))
    out = memory.inside(frame)
    _put_size(out, 0, 5 + block_bytes + len(message))
    out[4] = 0
    _put_size(out, 5, block_bytes)
    at = _put_text(out, _HEAD_BYTES, _CORRELATION_ID)
    at = _put_text(out, at, cid)
    at = _put_text(out, at, _OPERATION_ID)
    _put_size(out, at, digits)
    at = memory.put_decimal(out, at + 4, operation_id)
    if timeout_digits:
        at = _put_text(out, at, _TIMEOUT)
        _put_size(out, at, timeout_digits)
        at = memory.put_decimal(out, at + 4, timeout_ms)
    memory.put(out, at, more, 0, len(more))
    memory.put(out, at + len(more), message, 0, len(message))
    return frame


def _block_of(headers: dict[str, str]) -> bytes:
    pieces: list[bytes] = []
    for name, value in headers.items():
        for text in (name.encode("utf-8"), value.encode("utf-8")):
            pieces.append(_size(len(text)))
            pieces.append(text)
    return b"".join(pieces)


def _size(size: _int) -> bytes:
    return (size & 0xFFFFFFFF).to_bytes(4, "big")


def _put_size(out: bytearray, at: _int, size: _int) -> None:
    """Write a u32; compiled only."""
    out[at] = size >> 24 & 255
    out[at + 1] = size >> 16 & 255
    out[at + 2] = size >> 8 & 255
    out[at + 3] = size & 255


def _put_text(out: bytearray, at: _int, text: bytes) -> _int:
    """Write a size and a text; return where they end. Compiled only."""
    _put_size(out, at, len(text))
    memory.put(out, at + 4, text, 0, len(text))
    return at + 4 + len(text)


def read_frame(frame: bytes) -> tuple[str | None, int, int, dict[str, str] | None, int] | None:
    """Return correlation id, operation id, time-out (or `NONE`), the other headers if any, and where the message is.

    None: it is no frame, has no operation id, or is unusual, such as one with a negative time-out.
    """
    size = len(frame)
    text = frame
    if size < _HEAD_BYTES or _read_size(text, 0) != size - 4 or text[4] != 0:
        return None
    block_bytes = _read_size(text, 5)
    end = _HEAD_BYTES + block_bytes
    if block_bytes > _BLOCK_BYTES_MAX or end > size:
        return None
    correlation_id = None
    others = None
    operation_id = timeout_ms = NONE
    at = _HEAD_BYTES
    try:
        while at < end:
            if end - at < 4:
                return None
            name = at + 4
            size = _read_size(text, at)
            if size > end - name:
                return None
            name_end = name + size
            if end - name_end < 4:
                return None
            value = name_end + 4
            size = _read_size(text, name_end)
            if size > end - value:
                return None
            at = value + size
            if memory.equals(text, name, name_end, _CORRELATION_ID):
                correlation_id = text[value:at].decode("utf-8")
            elif memory.equals(text, name, name_end, _OPERATION_ID):
                operation_id = memory.number(text, value, at, _OPERATION_ID_DIGITS_MAX)
                if operation_id < 0:
                    return None
            elif memory.equals(text, name, name_end, _TIMEOUT):
                timeout_ms = memory.number(text, value, at, _TIMEOUT_DIGITS_MAX)
                if timeout_ms < 0:
                    return None
            else:
                if others is None:
                    others = {}
                others[text[name:name_end].decode("utf-8")] = text[value:at].decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if operation_id < 0 else (correlation_id, operation_id, timeout_ms, others, end)


def _read_size(text: bytes, at: _int) -> _int:
    size: int = text[at]
    return size << 24 | text[at + 1] << 16 | text[at + 2] << 8 | text[at + 3]
