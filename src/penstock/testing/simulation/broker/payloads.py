"""Reads the raw part of an answer as the driver sends it: from files, one of which may be shorter than expected.

Rules: as in `broker/socket_api/output.py`. A file that cannot be opened is an error of its request. A file that ends
too early is found only while the answer is being sent: the log is informed of the position, and the connection is
closed.
"""

from __future__ import annotations

from penstock.node.step import FileRange, Payload


class CutShortError(Exception):
    """An answer cannot be sent completely."""


def bytes_of(payload: Payload) -> bytes:
    """Read everything. Raise OSError if a file cannot be opened, CutShortError if one ends too early."""
    if payload is None:
        return b""
    pieces = payload if isinstance(payload, tuple) else (payload,)
    return b"".join([_read(piece) if isinstance(piece, FileRange) else bytes(piece) for piece in pieces])


def _read(extent: FileRange) -> bytes:
    file = extent.vfs.open(extent.path, read_only=True)
    try:
        data = file.read_at(extent.position, extent.length)
    finally:
        file.close()
    if len(data) < extent.length:
        end = extent.position + len(data)
        extent.damage_found(extent.path, end, "the file is shorter than its index says")
        raise CutShortError(f"{extent.path} ends at byte {end}")
    return data
