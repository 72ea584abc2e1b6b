"""Headers of Frugal's frames: a dict of texts to bytes, and back.

    u32 size, name, u32 size, value, u32 size, name, …      numbers big-endian, texts UTF-8

Rules: the caller has checked that the block lies within the frame. A decoder reads no byte beyond the end, and says
None of a block that is wrong: which byte it is, `penstock.frugal.frames` finds out.
"""

from __future__ import annotations

_int = int  # of C, when compiled


def encode_block(headers: dict[str, str]) -> bytes:
    """Return the block of headers. UnicodeEncodeError: a text that has no UTF-8."""
    pieces: list[bytes] = []
    for name, value in headers.items():
        encoded_name = name.encode("utf-8")
        encoded = value.encode("utf-8")
        pieces.append(_size(len(encoded_name)))
        pieces.append(encoded_name)
        pieces.append(_size(len(encoded)))
        pieces.append(encoded)
    return b"".join(pieces)


def _size(size: _int) -> bytes:
    return size.to_bytes(4, "big")


def decode_block(frame: bytes, start: _int, end: _int) -> dict[str, str] | None:
    """Return the headers of frame[start:end]; None: a size is beyond the end, or a text is no UTF-8."""
    headers: dict[str, str] = {}
    text = frame
    at = start
    try:
        while at < end:
            if end - at < 4:
                return None
            size = text[at]
            size = size << 24 | text[at + 1] << 16 | text[at + 2] << 8 | text[at + 3]
            name = at + 4
            if size > end - name:
                return None
            name_end = name + size
            if end - name_end < 4:
                return None
            size = text[name_end]
            size = size << 24 | text[name_end + 1] << 16 | text[name_end + 2] << 8 | text[name_end + 3]
            value = name_end + 4
            if size > end - value:
                return None
            at = value + size
            headers[frame[name:name_end].decode("utf-8")] = frame[value:at].decode("utf-8")
    except UnicodeDecodeError:
        return None
    return headers
