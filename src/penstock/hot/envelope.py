"""Parse the optional envelope of a published message: a Liftbridge-compatible header, then protobuf.

Rules: the bytes are untrusted, so every number is bounded before use. A payload that is not an envelope to the last
byte is stored as it came: `parse` returns None, never an error. Nothing is copied: results are positions. The caller
validates subjects in it.

| position | bytes | content                                                        |
|----------|-------|----------------------------------------------------------------|
| 0        | 4     | cookie `b90e43b4`                                              |
| 4        | 1     | version, 0                                                     |
| 5        | 1     | bytes of this header: 8, or 12 with a checksum                 |
| 6        | 1     | flags: bit 0: there is a checksum                              |
| 7        | 1     | type: 0 a message (1 is an ack, which is not accepted)         |
| 8        | 4     | only with bit 0: CRC-32C of what follows, big-endian           |
| 8 or 12  | rest  | protobuf `Message`                                             |

| field | type                 | attribute                | if missing                              |
|-------|----------------------|--------------------------|-----------------------------------------|
| 1     | int64                | `offset`                 | -1: none is expected                    |
| 2     | bytes                | `key`, `key_end`         | -1                                      |
| 3     | bytes                | `value`, `value_end`     | -1                                      |
| 4     | int64                | `timestamp`              | 0                                       |
| 5     | string               | `stream`, …              | -1                                      |
| 6     | int32                | `partition`              | 0                                       |
| 7     | string               | `subject`, …             | -1                                      |
| 8     | string               | `reply`, …               | -1                                      |
| 9     | map<string, bytes>   | `headers`                | empty; else four positions per entry    |
| 10    | string               | `ack_inbox`, …           | -1                                      |
| 11    | string               | `correlation_id`, …      | -1                                      |
| 12    | enum                 | `ack_policy`             | 0 leader (1 all, 2 none)                |

Protobuf's rules: fields in any order, the last one of a repeated field counts, unknown fields are skipped. A known
field of another wire type, a string that is not UTF-8, an unterminated number, or a size beyond the end: no envelope.
Protobuf omits zeros: a publisher that expects offset 0 must write it; without the field no offset is expected.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.hot import subjects
from penstock.hot.crc import crc32c

_int = int

COOKIE = b"\xb9\x0e\x43\xb4"
HEADER_BYTES = 8
HEADER_BYTES_WITH_CRC = 12
_VERSION = 0
_HAS_CRC = 1
_MESSAGE = 0

_VARINT = 0  # wire types
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5
_FIELDS = 12  # known fields, all of them a varint or bytes
_FIELD_MAX = 2**29 - 1
_INT32_MAX = 2**31 - 1
_UINT32_MAX = 2**32 - 1
_INT64_MAX = 2**63 - 1
_UINT64_MAX = 2**64 - 1
_HEADERS_MAX = limits.ENVELOPE_HEADERS_MAX


class Envelope:
    """The contents of one message's envelope; positions refer to the parsed bytes."""

    def __init__(self) -> None:
        self.offset = -1
        self.timestamp = 0
        self.partition = 0
        self.ack_policy = 0
        self.key = self.key_end = -1
        self.value = self.value_end = -1
        self.stream = self.stream_end = -1
        self.subject = self.subject_end = -1
        self.reply = self.reply_end = -1
        self.ack_inbox = self.ack_inbox_end = -1
        self.correlation_id = self.correlation_id_end = -1
        self.headers: list[int] = []
        self._at = 0

    def read(self, text: bytes, begin: _int, end: _int) -> bool:
        """Read the fields of a protobuf `Message`; return False if it is invalid."""
        self._at = begin
        while self._at < end:
            tag = self._varint(text, end)
            field = tag >> 3
            kind = tag & 7
            if self._at < 0 or field == 0 or field > _FIELD_MAX:
                return False
            if kind == _VARINT:
                number = self._varint(text, end)
                if self._at < 0 or not self._take_number(field, number):
                    return False
            elif kind == _BYTES:
                size = self._size(text, end)
                if self._at < 0 or not self._take_bytes(text, field, self._at, self._at + size):
                    return False
                self._at += size
            elif field <= _FIELDS or not self._skip_fixed(kind, end):
                return False
        return True

    def _take_number(self, field: _int, number: _int) -> bool:
        if field == 1:
            self.offset = _signed(number)
        elif field == 4:
            self.timestamp = _signed(number)
        elif field == 6:
            self.partition = _signed32(number)
        elif field == 12:
            self.ack_policy = _signed32(number)
        return field in (1, 4, 6, 12) or field > _FIELDS

    def _take_bytes(self, text: bytes, field: _int, begin: _int, end: _int) -> bool:
        if field == 2:
            self.key, self.key_end = begin, end
        elif field == 3:
            self.value, self.value_end = begin, end
        elif field == 5:
            self.stream, self.stream_end = begin, end
        elif field == 7:
            self.subject, self.subject_end = begin, end
        elif field == 8:
            self.reply, self.reply_end = begin, end
        elif field == 9:
            return self._take_header(text, begin, end)
        elif field == 10:
            self.ack_inbox, self.ack_inbox_end = begin, end
        elif field == 11:
            self.correlation_id, self.correlation_id_end = begin, end
        if field == 5 or field == 7 or field == 8 or field == 10 or field == 11:
            return subjects.is_text(text, begin, end)
        return field not in (1, 4, 6, 12)

    def _take_header(self, text: bytes, begin: _int, end: _int) -> bool:
        """Read one entry of the map: a message of two fields, name and value; a missing one is empty."""
        after = self._at
        name = name_end = value = value_end = begin
        self._at = begin
        while self._at < end:
            tag = self._varint(text, end)
            field = tag >> 3
            kind = tag & 7
            if self._at < 0 or field == 0 or field > _FIELD_MAX:
                return False
            if kind == _BYTES:
                size = self._size(text, end)
                if self._at < 0:
                    return False
                if field == 1:
                    name = self._at
                    name_end = self._at + size
                elif field == 2:
                    value = self._at
                    value_end = self._at + size
                self._at += size
            elif field <= 2:
                return False
            elif kind == _VARINT:
                self._varint(text, end)
                if self._at < 0:
                    return False
            elif not self._skip_fixed(kind, end):
                return False
        self._at = after
        if len(self.headers) >= 4 * _HEADERS_MAX or not subjects.is_text(text, name, name_end):
            return False
        self.headers += (name, name_end, value, value_end)
        return True

    def _skip_fixed(self, kind: _int, end: _int) -> bool:
        self._at += 8 if kind == _FIXED64 else 4
        return kind in (_FIXED64, _FIXED32) and self._at <= end

    def _size(self, text: bytes, end: _int) -> int:
        """Return a size, if that many bytes follow; else set the position to -1."""
        size = self._varint(text, end)
        if self._at >= 0 and size > end - self._at:
            self._at = -1
        return size if self._at >= 0 else 0

    def _varint(self, text: bytes, end: _int) -> int:
        """Return a number of up to 64 bits, 7 per byte, lowest first; set the position to -1 if it is unterminated."""
        value = 0
        shift = 0
        at = self._at
        while at < end:
            byte = text[at]
            at += 1
            if shift == 63 and byte > 1:
                break  # more than 64 bits
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self._at = at
                return value
            shift += 7
        self._at = -1
        return 0


def parse(data: bytes, begin: _int, end: _int) -> Envelope | None:
    """Parse the envelope data[begin:end]; None if it is not one. Raise IndexError if the range is not within `data`."""
    if begin < 0 or end > len(data):
        raise IndexError(f"{begin} to {end} of {len(data)} bytes")
    text = data
    if end - begin < HEADER_BYTES or text[begin] != 0xB9 or data[begin : begin + 4] != COOKIE:
        return None
    if text[begin + 4] != _VERSION or text[begin + 7] != _MESSAGE:
        return None
    body = begin + text[begin + 5]
    if text[begin + 6] == _HAS_CRC:
        if body != begin + HEADER_BYTES_WITH_CRC or body > end:
            return None
        crc = 0
        for at in range(begin + HEADER_BYTES, body):
            crc = crc << 8 | text[at]
        if crc32c(memoryview(data)[body:end]) != crc:
            return None
    elif text[begin + 6] != 0 or body != begin + HEADER_BYTES:
        return None
    found = Envelope()
    return found if found.read(text, body, end) else None


def _signed(number: _int) -> int:
    """Return 64 bits as two's complement."""
    return -(~number & _UINT64_MAX) - 1 if number > _INT64_MAX else number


def _signed32(number: _int) -> int:
    """Return the lower 32 bits as two's complement."""
    low = number & _UINT32_MAX
    return -(~low & _UINT32_MAX) - 1 if low > _INT32_MAX else low
