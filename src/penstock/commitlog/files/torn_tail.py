"""Decides which of the bytes that recovery cuts off may be deleted, and which are kept in a side file.

Rules: only bytes whose origin is understood are deleted. Everything else is kept until a person decides.

| bytes                                                                        | may be deleted               |
|------------------------------------------------------------------------------|------------------------------|
| none, or zeros                                                               | yes                          |
| part of a schema message of this log, then zeros                             | yes: a crash during a roll   |
| the next batches, the last one incomplete, with valid headers                | unless they may be flushed   |
| a complete, valid batch anywhere; anything else                              | no                           |
"""

from __future__ import annotations

import errno

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.batch import codec, layout
from penstock.batch.schema import SCHEMA_BYTES, schema_message
from penstock.commitlog.files import files
from penstock.vfs import File, Vfs

_MARK = layout.TEMPLATE[: layout.BODY_LENGTH_POSITION]


def is_zeros(file: File, position: int, end_position: int) -> bool:
    """True if all bytes between the two positions are zero."""
    while position < end_position:
        data = file.read_at(position, min(limits.SCAN_READ_BYTES, end_position - position))
        if any(data):
            return False
        position += max(1, len(data))
    return True


def is_unfinished_segment(file: File, end_position: int, ids: tuple[int, int]) -> bool:
    """True if the file holds no more than a crash during the creation of a segment leaves."""
    head = file.read_at(0, min(SCHEMA_BYTES, end_position))
    return schema_message(*ids).startswith(head.rstrip(b"\0")) and is_zeros(file, SCHEMA_BYTES, end_position)


def is_unfinished_append(file: File, position: int, end_position: int, offset: int) -> bool:
    """True if from `position` on there is no more than a crash during appends from `offset` on leaves."""
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


def copy_aside(vfs: Vfs, source: File, position: int, end_position: int) -> str:
    """Copy these bytes to a side file, sync it and return its path. The caller must sync its name. OSError.

    A complete or partial copy of an earlier try is reused, so repetition creates no second one.
    """
    side_path = _begun_copy(vfs, source, position, end_position) or files.side_path(vfs, source.path, position)
    target = vfs.open(side_path, create=True, make_folders=False)
    try:
        start = position
        position += target.size()
        while position < end_position:
            data = source.read_at(position, min(limits.SCAN_READ_BYTES, end_position - position))
            if not data:
                raise OSError(errno.EIO, "it is shorter than it was", source.path)
            target.write_at(position - start, data)
            position += len(data)
        target.sync()
    finally:
        target.close()
    return side_path


def _begun_copy(vfs: Vfs, source: File, position: int, end_position: int) -> str | None:
    """Return the path of a side file that holds a prefix of these bytes, and nothing else; None if there is none."""
    for path in files.side_files(vfs, source.path, position):
        try:
            file = vfs.open(path, read_only=True)
        except OSError:
            continue  # try another one
        try:
            size_bytes = file.size()
            if size_bytes <= end_position - position and _is_same(file, source, position, size_bytes):
                return path
        except OSError:
            continue
        finally:
            file.close()
    return None


def _is_same(copy: File, source: File, position: int, size_bytes: int) -> bool:
    for begin in range(0, size_bytes, limits.SCAN_READ_BYTES):
        length = min(limits.SCAN_READ_BYTES, size_bytes - begin)
        if copy.read_at(begin, length) != source.read_at(position + begin, length):
            return False
    return True
