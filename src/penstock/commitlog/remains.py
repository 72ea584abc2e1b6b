"""Which of the bytes that recovery takes out of a log may go, and which are kept in a side file.

Rules: only what is understood goes. Everything else is somebody's, until a person says otherwise.

| bytes                                                                        | may go                       |
|------------------------------------------------------------------------------|------------------------------|
| none, or zeros                                                               | yes                          |
| a schema message of this log, in part, then zeros                            | yes: a crash while it rolled |
| batches that were to come next, the last one in part, their headers sound    | unless they may be flushed   |
| a whole, verified batch, wherever it lies; anything else                     | no                           |
"""

from __future__ import annotations

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.batch import codec, layout
from penstock.batch.schema import SCHEMA_BYTES, schema_message
from penstock.vfs import File, Vfs

_MARK = layout.TEMPLATE[: layout.BODY_LENGTH_POSITION]


def is_zeros(file: File, position: int, end_position: int) -> bool:
    """Whether nothing but zeros lies between the two."""
    while position < end_position:
        data = file.read_at(position, min(limits.SCAN_READ_BYTES, end_position - position))
        if any(data):
            return False
        position += max(1, len(data))
    return True


def is_unfinished_segment(file: File, end_position: int, ids: tuple[int, int]) -> bool:
    """Whether the file holds no more than what a crash leaves of the making of a segment of this log."""
    head = file.read_at(0, min(SCHEMA_BYTES, end_position))
    return schema_message(*ids).startswith(head.rstrip(b"\0")) and is_zeros(file, SCHEMA_BYTES, end_position)


def is_unfinished_append(file: File, position: int, end_position: int, offset: int) -> bool:
    """Whether from `position` on there is no more than what a crash leaves of appends from `offset` on."""
    while position < end_position and not is_zeros(file, position, end_position):
        prefix = file.read_at(position, min(codec.PREFIX_BYTES, end_position - position))
        if len(prefix) < codec.PREFIX_BYTES:
            return prefix.startswith(_MARK[: len(prefix)])
        try:
            header = codec.read_header(prefix)
        except CorruptionError:
            return False
        if header.base_offset != offset:
            return False
        position += header.size_bytes
        offset = header.end_offset
    return True


def copy_aside(vfs: Vfs, source: File, position: int, end_position: int, side_path: str) -> None:
    """Copy these bytes to a side file, and sync it; its name is for the caller to sync. OSError."""
    target = vfs.open(side_path, create=True, make_folders=False)
    try:
        start = position
        while position < end_position:
            data = source.read_at(position, min(limits.SCAN_READ_BYTES, end_position - position))
            target.write_at(position - start, data)
            position += len(data)
        target.sync()
    finally:
        target.close()
