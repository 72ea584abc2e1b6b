"""Check the metadata of a batch message: 720 bytes, of which most are the same in every one.

Rules: an error is a number of Mistake; the caller puts it into words. No byte is read before the bounds are checked,
and no number of the message is used before it is bounded.

Theory: `batch.layout` defines the positions, which a Checker gets once. All metadata are checked in one immutable copy,
so that they cannot change between two checks.
"""

from __future__ import annotations

import struct
from binascii import unhexlify
from enum import IntEnum
from typing import Any, NamedTuple

try:
    import cython
except ImportError:
    from penstock.hot import cython

from penstock.hot import load
from penstock.hot.crc import crc32c

_int = int

_FLAGS = 1  # indexes of a header's fields
_SIZE = 2
_CRC = 3
_COUNT = 4

_INT64_MAX = 2**63 - 1
_NO_RUN = bytes(16)
_COLUMNS = 6
_BUFFERS = 16
_BUFFERS_OF_NUMBERS = 4  # two number columns come first: validity and numbers of each
_NEVER_NULL = 3  # number of columns without nulls, the first ones
_COMPRESSION_MASK = 3
_COMPRESSIONS = 4
_OF_RUN = 0x40  # as in `batch.header`
_ENDS_RUN = 0x80


class MetadataMistake(IntEnum):
    """Mistakes in a message, in the order of the checks."""

    TOO_SHORT = 1
    PREFIX = 2
    DIGITS = 3
    VERSION = 4
    FLAGS = 5
    SIZE = 6
    COUNT = 7
    OFFSETS = 8
    TIMESTAMPS = 9
    SPELLING = 10
    LENGTH = 11
    CRC = 12
    FIXED = 13
    ROWS = 14
    NULLS = 15
    PLACES = 16
    FILLING = 17


class MessageLayout(NamedTuple):
    """The layout of `batch.layout` and `batch.header`, and the limits."""

    template: bytes
    body_length_position: int
    header_position: int
    header_packing: struct.Struct  # before its encoding as hex digits
    rows_position: int
    nodes_position: int
    buffers_position: int
    header_version: int
    known_flags: int
    rows_max: int
    size_bytes_max: int
    crc_position: int
    templates: tuple[bytes, ...]  # indexed by the two compression flags, as a number
    compression_shift: int  # of these flags
    compression_field_position: int


class MessageChecker:
    """Checks metadata. Stateless."""

    def __init__(self, layout: MessageLayout) -> None:
        self._packing = layout.header_packing
        self._template = layout.template
        self._body_length_position = layout.body_length_position
        self._header_position = layout.header_position
        self._prefix_bytes = layout.header_position + 2 * layout.header_packing.size
        self._rows_position = layout.rows_position
        self._nodes_position = layout.nodes_position
        self._buffers_position = layout.buffers_position
        self._body_position = len(layout.template)
        self._header_version = layout.header_version
        self._known_flags = layout.known_flags
        self._rows_max = layout.rows_max
        self._size_bytes_max = layout.size_bytes_max
        self._crc_position = layout.crc_position
        self._templates = layout.templates
        self._compression_shift = layout.compression_shift
        if len(layout.templates) != _COMPRESSIONS or any(len(one) != len(layout.template) for one in layout.templates):
            raise IndexError("there is one template for each compression, and all are alike in size")
        ends = (
            layout.body_length_position + 8,
            self._prefix_bytes,
            layout.crc_position + 8,
            layout.rows_position + 8,
            layout.nodes_position + 16 * _COLUMNS,
            layout.buffers_position + 16 * _BUFFERS,
        )
        if max(ends) > len(layout.template):
            raise IndexError("a number of the message lies outside of its template")

    def header(self, data: bytes | bytearray | memoryview) -> tuple[Any, ...] | int:
        """Return the header fields of the message at the beginning of `data`, or the Mistake in its first bytes."""
        prefix = load.head(data, self._prefix_bytes)
        return self._fields(prefix) if len(prefix) == self._prefix_bytes else MetadataMistake.TOO_SHORT

    def message(self, data: bytes | bytearray | memoryview) -> tuple[Any, ...] | int:
        """Return the header fields of the whole message `data`, or the Mistake in its metadata or its checksum."""
        metadata = load.head(data, self._body_position)
        if len(metadata) < self._prefix_bytes:
            return MetadataMistake.TOO_SHORT
        fields = self._fields(metadata)
        if not isinstance(fields, tuple):
            return fields
        size_bytes = fields[_SIZE]
        if len(data) != size_bytes:
            return MetadataMistake.LENGTH
        body = memoryview(data)[self._body_position :]
        if crc32c(body, crc32c(load.zeroed(metadata, self._crc_position))) != fields[_CRC]:
            return MetadataMistake.CRC
        compression = fields[_FLAGS] >> self._compression_shift & _COMPRESSION_MASK
        template = self._templates[compression]
        is_plain = compression == 0 or compression == _COMPRESSION_MASK
        mistake = self._layout_mistake(metadata, template, is_plain, fields[_COUNT], size_bytes - self._body_position)
        return mistake or fields

    def _fields(self, text: bytes) -> tuple[Any, ...] | int:
        """Parse the first `_prefix_bytes` of a message."""
        begin = self._header_position
        template = self._template
        if not load.same(text, template, 0, self._body_length_position):
            return MetadataMistake.PREFIX
        if not load.same(text, template, self._body_length_position + 8, begin):
            return MetadataMistake.PREFIX
        spelling = load.hex_spelling(text, begin, self._prefix_bytes)
        if spelling == 0:
            return MetadataMistake.DIGITS
        if cython.compiled:
            version = load.hex_number(text, begin, 2)
            flags = load.hex_number(text, begin + 2, 4)
            size_bytes = load.hex_number(text, begin + 8, 8)
            crc = load.hex_number(text, begin + 16, 8)
            count = load.hex_number(text, begin + 24, 8)
            leader_epoch = load.hex_number(text, begin + 32, 8)
            base_offset = load.hex_number(text, begin + 40, 16)
            end_offset = load.hex_number(text, begin + 56, 16)
            min_timestamp_us = load.hex_number(text, begin + 72, 16)
            max_timestamp_us = load.hex_number(text, begin + 88, 16)
            producer_id = load.hex_number(text, begin + 104, 16)
            producer_epoch = load.hex_number(text, begin + 120, 8)
            producer_sequence = load.hex_number(text, begin + 128, 16)
            run_id = _NO_RUN
            run_plan = 0
            if not load.same(text, template, begin + 144, begin + 192):  # the template's digits are zeros
                run_id = unhexlify(text[begin + 144 : begin + 176])
                run_plan = load.hex_number(text, begin + 176, 16)
        else:
            (
                version, flags, size_bytes, crc, count, leader_epoch, base_offset, end_offset, min_timestamp_us,
                max_timestamp_us, producer_id, producer_epoch, producer_sequence, run_id, run_plan,
            ) = self._packing.unpack(unhexlify(text[begin : self._prefix_bytes]))  # fmt: skip
        if version != self._header_version:
            return MetadataMistake.VERSION
        if flags & ~self._known_flags:
            return MetadataMistake.FLAGS
        if size_bytes <= self._body_position or size_bytes > self._size_bytes_max or size_bytes & 7:
            return MetadataMistake.SIZE
        if count == 0 or count > self._rows_max:
            return MetadataMistake.COUNT
        if end_offset > _INT64_MAX or base_offset > end_offset or end_offset - base_offset < count:
            return MetadataMistake.OFFSETS
        if min_timestamp_us > max_timestamp_us:
            return MetadataMistake.TIMESTAMPS
        # A header has one spelling: its checksum does not cover its own digits, and reserved digits are not ignored.
        if spelling == 1 or not load.same(text, template, begin + 6, begin + 8):
            return MetadataMistake.SPELLING
        is_run = flags & _OF_RUN != 0
        if is_run and run_id == _NO_RUN:
            return MetadataMistake.SPELLING
        if not is_run and (run_plan or flags & _ENDS_RUN):
            return MetadataMistake.SPELLING
        return (
            version, flags, size_bytes, crc, count, leader_epoch, base_offset, end_offset, min_timestamp_us,
            max_timestamp_us, producer_id, producer_epoch, producer_sequence, run_id, run_plan,
        )  # fmt: skip

    def _layout_mistake(self, text: bytes, template: bytes, is_plain: bool, count: _int, body_bytes: _int) -> int:
        """Check all metadata of a message; `count` and `body_bytes` are the header's. Return 0 if it is sound.

        Of compressed buffers the uncompressed sizes are unknown, so they are not checked.
        """
        if not load.same(text, template, self._prefix_bytes, self._rows_position):
            return MetadataMistake.FIXED
        if not load.same(text, template, self._rows_position + 8, self._nodes_position):
            return MetadataMistake.FIXED
        if not load.same(text, template, self._nodes_position + 16 * _COLUMNS, self._buffers_position):
            return MetadataMistake.FIXED
        if load.int64s(text, self._body_length_position, 1)[0] != body_bytes:
            return MetadataMistake.ROWS
        if load.int64s(text, self._rows_position, 1)[0] != count:
            return MetadataMistake.ROWS
        nodes = load.int64s(text, self._nodes_position, 2 * _COLUMNS)
        for column in range(_COLUMNS):
            if nodes[2 * column] != count:
                return MetadataMistake.ROWS
        for column in range(_COLUMNS):
            nulls = nodes[2 * column + 1]
            if nulls < 0 or nulls > (count if column >= _NEVER_NULL else 0):
                return MetadataMistake.NULLS
        places = load.int64s(text, self._buffers_position, 2 * _BUFFERS)
        position = 0
        for number in range(_BUFFERS):
            size = places[2 * number + 1]
            if places[2 * number] != position or size < 0 or size > body_bytes - position:
                return MetadataMistake.PLACES
            if number < _BUFFERS_OF_NUMBERS:
                exact = 8 * count if number & 1 else 0
            else:
                column = (number + 2) // 3
                kind = (number - _BUFFERS_OF_NUMBERS) % 3
                exact = -1
                if kind == 0:
                    exact = (count + 7) // 8 if nodes[2 * column + 1] else 0
                elif kind == 1:
                    exact = 4 * (count + 1)
            if is_plain and exact >= 0 and size != exact:
                return MetadataMistake.PLACES
            position += (size + 7) & ~7
        return 0 if position == body_bytes else MetadataMistake.FILLING
