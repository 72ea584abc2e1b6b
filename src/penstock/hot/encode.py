"""Encode rows as one Arrow message: a template with patched numbers, and columns filled by copying.

Rules: the output is final, and byte for byte the same compiled or plain. Every byte of the message is written here,
padding included: its memory is not cleared first.

    template (metadata; the batch header as hex within it)
    offset     8 bytes a row: base_offset, base_offset + 1, …
    timestamp  8 bytes a row, the same in each
    subject    offsets, text     ╮ 4-byte value offsets, one more than rows, then all values end to end;
    key        [validity], …     │ validity (one bit a row, least significant first, 1 = not null) comes before them
    value      [validity], …     │ if a row has a null
    headers    [validity], …     ╯

Every buffer begins on a multiple of 8. The CRC is computed while its own digits are still the template's zeros.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ImportError:
    from penstock.hot import cython

from penstock.hot import memory, places
from penstock.hot.columns import int64_range, int64_repeat, null_var_column, nullable_var_column, var_column
from penstock.hot.crc import crc32c
from penstock.hot.message import MessageLayout
from penstock.hot.message_group import MessageGroup

_COLUMN_BYTES_MAX = 2**31 - 1  # value offsets are int32
_OFFSET_MAX = 2**63 - 1
_EPOCH_MAX = 2**32 - 1
_FLAGS_MAX = 2**16 - 1
_NO_RUN = bytes(16)
_PADDING = (b"", *[bytes(size) for size in range(1, 8)])

_COLUMNS = 6
_BUFFERS = 16

# Digits of the batch header; fields not listed here are zero in a broker's batch.
_FLAGS_DIGITS = 2
_SIZE_DIGITS = 8
_CRC_DIGITS = 16
_COUNT_DIGITS = 24
_EPOCH_DIGITS = 32
_BASE_DIGITS = 40
_END_DIGITS = 56
_MIN_TIME_DIGITS = 72
_MAX_TIME_DIGITS = 88


class Encoder:
    """Encodes messages of one layout."""

    __slots__ = ("_body_length", "_buffers", "_header", "_nodes", "_rows", "_template", "_version")

    def __init__(self, layout: MessageLayout) -> None:
        self._template = layout.template
        self._body_length = layout.body_length_position
        self._header = layout.header_position
        self._rows = layout.rows_position
        self._nodes = layout.nodes_position
        self._buffers = layout.buffers_position
        self._version = layout.header_version
        positions = (self._body_length, self._header, self._rows, self._nodes, self._buffers)
        ends = (
            self._body_length + 8,
            self._header + 2 * layout.header_packing.size,
            self._rows + 8,
            self._nodes + 16 * _COLUMNS,
            self._buffers + 16 * _BUFFERS,
        )
        if min(positions) < 0 or max(ends) > len(self._template):
            raise IndexError("a number of the message lies outside of its template")

    def encode(
        self,
        group: MessageGroup,
        start: int,
        end: int,
        base_offset: int,
        timestamp_us: int,
        leader_epoch: int,
        flags: int,
    ) -> tuple[bytearray, tuple[Any, ...]]:
        """Return the rows [start, end) of `group` as one whole encapsulated message, and the fields of its header.

        All rows get the same timestamp; there is no producer.
        """
        count = end - start
        if not 0 <= start < end <= group.count:
            raise IndexError(f"rows {start} to {end} of {group.count}")
        if not 0 <= base_offset <= _OFFSET_MAX - count:
            raise OverflowError(f"{count} rows from offset {base_offset} on")
        if not 0 <= leader_epoch <= _EPOCH_MAX:
            raise OverflowError(f"leader epoch {leader_epoch}")
        if not 0 <= flags <= _FLAGS_MAX:
            raise OverflowError(f"flags {flags}")
        if cython.compiled:
            message = self._fill(group, start, end, base_offset, timestamp_us)
        else:
            message = self._join(group, start, end, base_offset, timestamp_us)
        out = message
        size = len(message)
        memory.put_int64(out, self._body_length, size - len(self._template))
        memory.put_int64(out, self._rows, count)
        header = self._header
        memory.put_hex(out, header, self._version, 2)
        memory.put_hex(out, header + _FLAGS_DIGITS, flags, 4)
        memory.put_hex(out, header + _SIZE_DIGITS, size, 8)
        memory.put_hex(out, header + _COUNT_DIGITS, count, 8)
        memory.put_hex(out, header + _EPOCH_DIGITS, leader_epoch, 8)
        memory.put_hex(out, header + _BASE_DIGITS, base_offset, 16)
        memory.put_hex(out, header + _END_DIGITS, base_offset + count, 16)
        memory.put_hex(out, header + _MIN_TIME_DIGITS, timestamp_us, 16)
        memory.put_hex(out, header + _MAX_TIME_DIGITS, timestamp_us, 16)
        crc = crc32c(message)
        memory.put_hex(out, header + _CRC_DIGITS, crc, 8)
        version = self._version
        end_offset = base_offset + count
        return message, (
            version, flags, size, crc, count, leader_epoch, base_offset, end_offset, timestamp_us, timestamp_us,
            0, 0, 0, _NO_RUN,
        )  # fmt: skip

    def _fill(self, group: MessageGroup, start: int, end: int, base_offset: int, timestamp_us: int) -> bytearray:
        """Write template and body, compiled: each byte of a row is copied once, to its final place."""
        count = end - start
        numbers = group.numbers
        text_bytes = 0
        for row in range(start, end):
            at = row * places.STRIDE
            text_bytes += numbers[at + places.SUBJECT + 1] - numbers[at + places.SUBJECT]
            text_bytes += numbers[at + places.HEADERS + 1] - numbers[at + places.HEADERS]
            text_bytes += numbers[at + places.VALUE + 1] - numbers[at + places.VALUE]
            text_bytes += numbers[at + places.KEY + 1] - numbers[at + places.KEY]
        if text_bytes > _COLUMN_BYTES_MAX:
            raise OverflowError(f"{text_bytes} bytes in one batch")
        body = len(self._template)
        per_column = _padded((count + 7) // 8) + _padded(4 * (count + 1)) + 8
        # The upper bound for four columns; the excess is cut off at the end.
        message = memory.new(body + 16 * count + 4 * per_column + text_bytes)
        out = message
        memory.put(out, 0, self._template, 0, body)
        self._note(out, 0, count, 0)
        self._note(out, 1, count, 0)
        self._place(out, 0, 0, 0)
        self._place(out, 1, 0, 8 * count)
        self._place(out, 2, 8 * count, 0)
        self._place(out, 3, 8 * count, 8 * count)
        for row in range(count):
            memory.put_int64(out, body + 8 * row, base_offset + row)
        for row in range(count):
            memory.put_int64(out, body + 8 * (count + row), timestamp_us)
        position = body + 16 * count
        position = self._fill_column(message, position, 2, group, start, end, places.SUBJECT)
        position = self._fill_column(message, position, 3, group, start, end, places.KEY)
        position = self._fill_column(message, position, 4, group, start, end, places.VALUE)
        position = self._fill_column(message, position, 5, group, start, end, places.HEADERS)
        memory.cut(message, position)
        return message

    def _fill_column(
        self, message: bytearray, position: int, column: int, group: MessageGroup, start: int, end: int, place: int
    ) -> int:
        """Write the three buffers of one column at `position`; return their end. The caller has reserved the room."""
        out = message
        body = len(self._template)
        buffer = 3 * column - 2
        count = end - start
        numbers = group.numbers
        nulls = 0
        for row in range(start, end):
            if numbers[row * places.STRIDE + place] < 0:
                nulls += 1
        self._note(out, column, count, nulls)
        size = (count + 7) // 8 if nulls else 0
        self._place(out, buffer, position - body, size)
        memory.put_zeros(out, position, _padded(size))
        if 0 < nulls < count:
            for row in range(count):
                if numbers[(start + row) * places.STRIDE + place] >= 0:
                    out[position + row // 8] |= 1 << (row & 7)
        position += _padded(size)
        size = 4 * (count + 1)
        self._place(out, buffer + 1, position - body, size)
        offsets = position
        position += _padded(size)
        if nulls == count:
            memory.put_zeros(out, offsets, position - offsets)
            self._place(out, buffer + 2, position - body, 0)
            return position
        memory.put_int32(out, offsets, 0)
        at = position
        source: bytes | bytearray = group.data
        if place == places.KEY:
            source = group.keys
        for row in range(count):
            begin = numbers[(start + row) * places.STRIDE + place]
            if begin >= 0:
                stop = numbers[(start + row) * places.STRIDE + place + 1]
                memory.put(out, at, source, begin, stop)
                at += stop - begin
            memory.put_int32(out, offsets + 4 * (row + 1), at - position)
        memory.put_zeros(out, offsets + size, position - offsets - size)
        size = at - position
        self._place(out, buffer + 2, position - body, size)
        memory.put_zeros(out, at, _padded(size) - size)
        return position + _padded(size)

    def _note(self, out: bytearray, column: int, rows: int, nulls: int) -> None:
        memory.put_int64(out, self._nodes + 16 * column, rows)
        memory.put_int64(out, self._nodes + 16 * column + 8, nulls)

    def _place(self, out: bytearray, buffer: int, position: int, size: int) -> None:
        memory.put_int64(out, self._buffers + 16 * buffer, position)
        memory.put_int64(out, self._buffers + 16 * buffer + 8, size)

    def _join(self, group: MessageGroup, start: int, end: int, base_offset: int, timestamp_us: int) -> bytearray:
        """Write template and body, plain: C loops only, with one object for each part of a row."""
        count = end - start
        null_counts = [0, 0]
        buffers: list[bytes | memoryview] = [
            b"",
            int64_range(base_offset, count),
            b"",
            int64_repeat(timestamp_us, count),
        ]
        for place in (places.SUBJECT, places.KEY, places.VALUE, places.HEADERS):
            source = bytes(group.keys) if place == places.KEY else group.data
            begins = group.numbers[start * places.STRIDE + place : end * places.STRIDE : places.STRIDE]
            ends = group.numbers[start * places.STRIDE + place + 1 : end * places.STRIDE : places.STRIDE]
            spans = zip(begins, ends, strict=True)
            if max(begins) < 0:
                column = null_var_column(count)
            elif min(begins) >= 0:
                column = var_column([source[begin:stop] for begin, stop in spans])
            else:
                column = nullable_var_column([None if begin < 0 else source[begin:stop] for begin, stop in spans])
            null_counts.append(column.null_count)
            buffers += column[1:]
        message = bytearray(self._template)
        for number, nulls in enumerate(null_counts):
            self._note(message, number, count, nulls)
        position = 0
        for number, buffer in enumerate(buffers):
            self._place(message, number, position, len(buffer))
            position += _padded(len(buffer))
        padded = [part for buffer in buffers for part in (buffer, _PADDING[-len(buffer) & 7])]
        return bytearray().join([message, *padded])


def _padded(size: int) -> int:
    """Return `size` rounded up to 8 bytes, on which every buffer begins."""
    return (size + 7) & ~7
